"""``kvreclaim runtimes``: block sizes and tables of serving runtimes, with their sources."""

from __future__ import annotations

from dataclasses import asdict

from kvreclaim.cli.output import Json, console, emit_json, plain_table


def runtimes_command(json: Json = None) -> None:
    """List the runtimes that `audit --runtime` knows: block size, block tables, and where that is written."""
    from kvreclaim.layout import runtimes

    presets = runtimes()
    emit_json(json, [{**asdict(preset), "configurable": preset.configurable} for preset in presets])
    table = plain_table(
        "Blocks as each runtime ships them", "--json - adds notes on when a preset does not hold."
    )
    table.add_column("runtime, and what sets its block size", overflow="fold")
    table.add_column("block\nsize", justify="right")
    table.add_column("block\ntables", no_wrap=True)
    table.add_column("source", overflow="fold")
    for preset in presets:
        setting = f"configurable: {preset.setting}" if preset.configurable else "fixed"
        source = f"{preset.repository} {preset.version}, {preset.date}"
        table.add_row(preset.name, str(preset.block_size), preset.block_tables, source)
        table.add_row(f"  {setting}", "", "", f"  {preset.file}", style="dim")
    console(json).print(table)
