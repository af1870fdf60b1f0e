"""How commands speak: tables for people, JSON for programs, progress on stderr."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kvreclaim.results import as_json, write_bytes

Json = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE|-", help="Also write JSON; with '-' to stdout, tables then to stderr."
    ),
]

MISSING = "–"


def console(json: str | None) -> Console:
    """Return the console for tables: stderr where JSON goes to stdout."""
    return Console(stderr=json == "-", highlight=False, soft_wrap=False)


def emit_json(json: str | None, value: Any) -> None:
    """Write ``value`` as JSON to a file, to stdout for ``-``, or nowhere for None."""
    if json == "-":
        sys.stdout.write(as_json(value))
    elif json is not None:
        write_bytes(json, as_json(value).encode())


def plain_table(title: str, caption: str | None = None) -> Table:
    """Return an empty table in the house style: a rule under the head, no boxes, read well at 80 columns."""
    return Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        caption_style="dim",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def progress() -> Progress:
    """Return a progress bar with time left, on stderr, gone when done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def percent(value: float | None, digits: int = 1) -> str:
    """Return a fraction as a percentage."""
    return MISSING if value is None else f"{value:.{digits}%}"


def byte_unit(largest: float) -> tuple[str, int]:
    """Return the unit (name, bytes) in which the largest of some byte counts reads well."""
    for unit in ("GiB", 1 << 30), ("MiB", 1 << 20):
        if largest >= unit[1]:
            return unit
    return "KiB", 1 << 10
