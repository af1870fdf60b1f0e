"""``kvreclaim runtimes``: block sizes and tables of serving runtimes, with their sources."""

from __future__ import annotations

from dataclasses import asdict

from rich.padding import Padding
from rich.text import Text

from kvreclaim.cli.output import Json, console, emit_json, plain_table


def runtimes_command(json: Json = None) -> None:
    """List the runtimes that `audit --runtime` knows: block size, block tables, and where that is written."""
    from kvreclaim.layout import runtimes

    presets = runtimes()
    emit_json(json, [{**asdict(preset), "configurable": preset.configurable} for preset in presets])
    table = plain_table("Blocks as each runtime ships them")
    table.add_column("runtime", no_wrap=True)
    table.add_column("block\nsize", justify="right", no_wrap=True)
    table.add_column("block\ntables", no_wrap=True)
    table.add_column("block size set by", no_wrap=True)
    sources: dict[tuple[str, str], list[str]] = {}
    for preset in presets:
        setting = preset.setting or "fixed"
        table.add_row(preset.name, str(preset.block_size), preset.block_tables, setting)
        release = f"{preset.repository} {preset.version}, {preset.date}"
        sources.setdefault((release, preset.file), []).append(preset.name)
    screen = console(json)
    screen.print(table, "", Text("Where that is written", style="bold"), sep="\n")
    for (release, file), names in sources.items():
        screen.print(f"{', '.join(names)}: {release}")
        screen.print(Padding(Text(file, style="dim", overflow="fold"), (0, 0, 0, 1)))
    screen.print("", Text("--json - adds notes on when a preset does not hold.", style="dim"), sep="\n")
