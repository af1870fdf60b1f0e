"""Trace files as lazy tables of text or numbers, with the number of each row's line."""

from __future__ import annotations

import csv
import glob
import gzip
import json
from dataclasses import dataclass
from typing import IO, Any, cast

import polars as pl

from kvreclaim.errors import InputError

CSV_FIRST = 2  # line of a CSV file's first row
_UNREADABLE = (OSError, pl.exceptions.PolarsError, UnicodeDecodeError, EOFError)


@dataclass(frozen=True)
class Table:
    """A lazy table and where it comes from.

    Parameters
    ----------
    file
        The path, as given.
    frame
        Its rows; columns of CSV files are texts.
    columns
        Names of the columns.
    first_line
        Line of the first row; None where rows have no lines.
    """

    file: str
    frame: pl.LazyFrame
    columns: tuple[str, ...]
    first_line: int | None

    def where(self, row: int) -> str:
        """Name a row, counted from 0, for a message."""
        place = f"row {row + 1}" if self.first_line is None else f"line {row + self.first_line}"
        return f"{self.file}, {place}"


def open_table(file: str) -> Table:
    """Open a CSV, JSON lines or Parquet file, told apart by how it begins.

    Raises
    ------
    InputError
        If it can't be read, or has no rows.
    """
    try:
        with _opened(file) as stream:
            head = stream.readline(1 << 20)
        if head.startswith(b"PAR1"):
            frame = pl.scan_parquet(file, glob=False)
            return Table(file, frame, tuple(frame.collect_schema().names()), None)
        if head.lstrip().startswith(b"{"):
            return _json_lines(file, head)
        frame = pl.scan_csv(file, infer_schema=False, glob=False)
        return Table(file, frame, tuple(frame.collect_schema().names()), CSV_FIRST)
    except _UNREADABLE as error:
        raise InputError(f"{file}: can't be read ({_first_line(error)}); pass a trace") from error


def unreadable(table: Table, error: Exception) -> InputError:
    """Return what to say of a table whose rows can't be parsed: the line of the first that can't."""
    line = _broken_line(table)
    place = table.file if line is None else f"{table.file}, line {line}"
    return InputError(f"{place}: can't be read ({_first_line(error)}); pass a whole trace")


def _opened(file: str) -> IO[bytes]:
    opener: Any = gzip.open if file.endswith(".gz") else open
    return cast("IO[bytes]", opener(file, "rb"))


def _json_lines(file: str, head: bytes) -> Table:
    try:
        first = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}, line 1: is no JSON; pass a JSON object on each line") from error
    columns = tuple(first)
    frame = pl.scan_ndjson(glob.escape(file), infer_schema_length=1)  # it takes nothing but patterns
    return Table(file, frame, columns, 1)


def _broken_line(table: Table) -> int | None:
    """Return the line that is no row, read slowly; None where all are."""
    if table.first_line is None:
        return None
    kinds: dict[str, tuple[bool, bool]] = {}
    with _opened(table.file) as stream:
        for number, line in enumerate(stream, 1):
            text = line.decode(errors="replace").rstrip("\r\n")
            if (
                table.first_line == CSV_FIRST
                and text
                and len(next(csv.reader([text]), [])) != len(table.columns)
            ):
                return number
            if table.first_line == 1:
                kinds = kinds or _kinds(text)
                if not kinds or _kinds(text) != kinds:
                    return number
    return None


def _kinds(text: str) -> dict[str, tuple[bool, bool]]:
    """Return which keys of a JSON object hold texts, and which yes or no; none where it is no object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: (isinstance(value, str), isinstance(value, bool)) for key, value in found.items()}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
