"""How commands speak: tables for people, JSON for programs, progress on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from os import PathLike
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kvreclaim.results import as_json, check_writable, utf8, write_bytes

STDOUT = "-"
STDOUT_FILE, STDERR_FILE = 1, 2


def _check_json(json: str | None) -> str | None:
    """Refuse a JSON file that can't be written while nothing is done yet."""
    if json not in (None, STDOUT):
        check_writable(json)
    return json


Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        help="Also write JSON; with '-' to stdout, tables then to stderr.",
        callback=_check_json,
    ),
]

MISSING = "–"
NARROWEST = 80  # columns of a table
_ESTIMATE_SECONDS = 600.0  # time left goes by this much past: steps come in bursts


def console(json: str | None) -> Console:
    """Return the console for tables: stderr where JSON goes to stdout. Text in brackets is just text."""
    screen = Console(stderr=json == STDOUT, highlight=False, soft_wrap=False, markup=False, emoji=False)
    screen.width = max(screen.width, NARROWEST)  # on fewer columns numbers would be cut
    return screen


def emit_json(json: str | None, value: Any) -> None:
    """Write ``value`` as JSON to a file, to stdout for ``-``, or nowhere for None."""
    if json == STDOUT:
        typer.echo(utf8(as_json(value)), nl=False)
    elif json is not None:
        write_bytes(json, utf8(as_json(value)))


@contextmanager
def others_on_stderr() -> Iterator[None]:
    """Send to stderr what libraries write to stdout, in Python or below it: stdout is for answers."""
    sys.stdout.flush()
    answers = os.dup(STDOUT_FILE)
    os.dup2(STDERR_FILE, STDOUT_FILE)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(answers, STDOUT_FILE)
        os.close(answers)


def printable(text: str) -> str:
    """Return text on one line, with escapes for what would steer the terminal or can't be encoded."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def wrote(path: str | PathLike[str], what: str) -> str:
    """Return the line that says what was written where."""
    return f"wrote {printable(os.fspath(path))}: {what}"


def plain_table(title: str, caption: str | None = None) -> Table:
    """Return an empty table in the house style: a rule under the head, no boxes, read well at 80 columns."""
    return Table(
        title=title,
        caption=None if caption is None else f"\n{caption}",
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        caption_style="dim",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


def progress() -> Progress:
    """Return a progress bar with time left, on a terminal's stderr, gone when done."""
    screen = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
        speed_estimate_period=_ESTIMATE_SECONDS,
    )


def percent(value: float | None, digits: int = 1) -> str:
    """Return a fraction as a percentage."""
    return MISSING if value is None else f"{value:.{digits}%}"


def byte_unit(largest: float) -> tuple[str, int]:
    """Return the unit (name, bytes) in which the largest of some byte counts reads well."""
    for unit in ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20):
        if largest >= unit[1]:
            return unit
    return "KiB", 1 << 10
