"""``kvreclaim audit``: the ledger of keep-mask files."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from kvreclaim.cli.output import (
    Json,
    byte_unit,
    console,
    emit_json,
    percent,
    plain_table,
    printable,
    progress,
    wrote,
)
from kvreclaim.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.table import Table

    from kvreclaim.audits import FileAudit
    from kvreclaim.layout import BlockLayout
    from kvreclaim.ledger import Ledger

    Amount = tuple[str, Callable[[list[Ledger]], str]]  # a column's heading, and its cell for some ledgers


def audit_command(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Keep masks: .npz, .npy or .safetensors.")
    ],
    block_size: Annotated[
        list[int] | None,
        typer.Option(metavar="TOKENS", help="Tokens of a block; may be repeated. 16 if not given."),
    ] = None,
    block_tables: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="shared, per_layer or per_head; may be repeated. All three if not given.",
        ),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Block size and tables of a runtime of `kvreclaim runtimes`, instead."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A model's name or config.json: adds bytes, and the windows of its layers.",
        ),
    ] = None,
    json: Json = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write a results folder, for `kvreclaim page`.")
    ] = None,
    fail_under: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="Exit with status 1 if any physical reclaim is under it, and name the masks.",
        ),
    ] = None,
) -> None:
    """Say what keep masks free in a paged runtime with zero copies, and what freeing more would cost."""
    from kvreclaim.audits import audit_files, write_audit
    from kvreclaim.layout import model as model_geometry
    from kvreclaim.validate import fraction

    least = None if fail_under is None else fraction(fail_under, "--fail-under")
    layouts = _layouts(block_size, block_tables, runtime)
    geometry = None if model is None else model_geometry(model)
    files = list(dict.fromkeys(files))
    with progress() as bar:
        task = bar.add_task("auditing files", total=len(files))
        rows = audit_files(files, layouts, geometry, advance=lambda: bar.advance(task))
    written = None
    if out is not None:
        parameters = {
            "files": files,
            "block_sizes": list(dict.fromkeys(layout.block_size for layout in layouts)),
            "block_tables": list(dict.fromkeys(layout.block_tables for layout in layouts)),
            "runtime": runtime,
            "model": model,
        }
        written = write_audit(out, rows, parameters, layouts[0].block_size)
    emit_json(json, [row.to_dict() for row in rows])
    screen = console(json)
    for size in dict.fromkeys(layout.block_size for layout in layouts):
        screen.print(_table([row for row in rows if row.ledger.block_size == size], len(files)), "")
    if written is not None:
        screen.print(wrote(written.path, "tables and block maps, for `kvreclaim page`"))
    low = [row for row in rows if least is not None and row.ledger.physical_reclaim < least]
    if low:
        screen.print(f"{len(low)} of {len(rows)} ledgers have a physical reclaim under {least:g}:")
        for line in _named(low):
            screen.print(line)
        raise typer.Exit(1)


def _named(rows: list[FileAudit]) -> Iterator[str]:
    """Yield a line for each mask: its policy, what it frees, and its file where there are several."""
    several_files = len({row.file for row in rows}) > 1
    several_sizes = len({row.ledger.block_size for row in rows}) > 1
    for (policy, file), found in groupby(rows, key=lambda row: (row.ledger.policy, row.file)):
        freed = [
            f"{percent(row.ledger.physical_reclaim)} {row.ledger.block_tables}"
            + (f" in blocks of {row.ledger.block_size}" if several_sizes else "")
            for row in found
        ]
        of_file = f" ({printable(file)})" if several_files else ""
        yield f"  {printable(policy)}: {', '.join(freed)}{of_file}"


def _layouts(
    block_sizes: list[int] | None, block_tables: list[str] | None, runtime: str | None
) -> list[BlockLayout]:
    from kvreclaim.layout import BLOCK_TABLES, BlockLayout
    from kvreclaim.layout import runtime as runtime_preset

    if runtime is None:
        sizes, tables = block_sizes or [16], block_tables or list(BLOCK_TABLES)
        return [BlockLayout(size, table) for size in dict.fromkeys(sizes) for table in dict.fromkeys(tables)]
    if block_sizes or block_tables:
        raise InputError(
            "--runtime sets block size and tables; drop it, or drop --block-size and --block-tables"
        )
    return [runtime_preset(runtime).layout]


def _table(rows: list[FileAudit], files: int) -> Table:
    """Build the table of one block size: a row per policy, the mean over the files that have it."""
    from kvreclaim.layout import BLOCK_TABLES

    kinds = sorted({row.ledger.block_tables for row in rows}, key=BLOCK_TABLES.index)
    policies = _ranked(rows, kinds[0])
    counts = {len(found) // len(kinds) for found in policies.values()}
    size = rows[0].ledger.block_size
    table = plain_table(
        f"Blocks of {size} tokens: freed with zero copies, and after packing",
        _caption(kinds[0], files, counts),
    )
    table.padding = (0, 0)  # one space between the columns: with a model there are nine
    table.add_column("policy", overflow="fold", min_width=12)
    amounts = _amounts(rows)
    freed = [f"freed,\n{kind}".replace("_", "\n") for kind in kinds]
    headings = ["logical\nsaving", *freed, "stranded", "after\npacking", *(heading for heading, _ in amounts)]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for policy, found in policies.items():
        table.add_row(printable(policy), *_cells(found, kinds, amounts))
    return table


def _amounts(rows: list[FileAudit]) -> list[Amount]:
    """Return headings and cells for what moves in packing: pairs, or with a model bytes freed and moved."""
    if rows[0].ledger.bytes_freed is None:
        return [
            (
                "pairs\nmoved",
                lambda ledgers: f"{_mean([found.packing.moved_pairs for found in ledgers]):,.0f}",
            )
        ]
    name, size = byte_unit(
        max(max(row.ledger.bytes_freed or 0, row.ledger.packing.moved_bytes or 0) for row in rows)
    )
    return [
        (f"{name}\nfreed", lambda ledgers: f"{_mean([found.bytes_freed for found in ledgers]) / size:,.2f}"),
        (
            f"{name}\nmoved",
            lambda ledgers: f"{_mean([found.packing.moved_bytes for found in ledgers]) / size:,.2f}",
        ),
    ]


def _ranked(rows: list[FileAudit], kind: str) -> dict[str, list[FileAudit]]:
    """Group rows by policy, in the order of blocks freed in tables of a kind, then of pairs moved."""
    from kvreclaim.audits import labels

    policies: dict[str, list[FileAudit]] = {}
    for name, row in zip(labels(rows), rows, strict=True):
        policies.setdefault(name, []).append(row)

    def rank(policy: str) -> tuple[float, float]:
        ledgers = [row.ledger for row in policies[policy] if row.ledger.block_tables == kind]
        return (
            -sum(ledger.physical_reclaim for ledger in ledgers) / len(ledgers),
            sum(ledger.packing.moved_pairs for ledger in ledgers) / len(ledgers),
        )

    return {policy: policies[policy] for policy in sorted(policies, key=rank)}


def _cells(found: list[FileAudit], kinds: list[str], amounts: list[Amount]) -> list[str]:
    by_kind = {kind: [row.ledger for row in found if row.ledger.block_tables == kind] for kind in kinds}
    first = by_kind[kinds[0]]
    stranded = [ledger.stranded for ledger in first if ledger.stranded is not None]
    return [
        percent(_mean([ledger.logical_saving for ledger in first])),
        *(percent(_mean([ledger.physical_reclaim for ledger in by_kind[kind]])) for kind in kinds),
        percent(_mean(stranded) if stranded else None),
        percent(_mean([ledger.packing.physical_reclaim for ledger in first])),
        *(shown(first) for _heading, shown in amounts),
    ]


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)


def _caption(kind: str, files: int, counts: set[int]) -> str:
    over = (
        ""
        if counts == {1}
        else f" Means over {'-'.join(str(count) for count in sorted(counts))} masks per policy."
    )
    return (
        f"{files} file{'s' if files > 1 else ''}, measured.{over} "
        f"Stranded, packing and moves: {kind} block tables."
    )
