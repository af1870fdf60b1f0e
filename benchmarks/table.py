"""The table of a run: what was measured, what was wanted, and whether it was met."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.timing import Estimate

COLUMNS = ("benchmark", "what", "target", "median", "interval", "pairs", "met")
CSV_COLUMNS = ("benchmark", "what", "unit", "at_least", "below", "median", "low", "high", "pairs", "met")


@dataclass(frozen=True)
class Row:
    """One measured number.

    Parameters
    ----------
    benchmark, what
        What ran, and what the number says of it.
    unit
        ``x`` for a ratio, ``s`` for seconds.
    measured
        Median, interval and count.
    at_least, below
        The target, if there is one.
    """

    benchmark: str
    what: str
    unit: str
    measured: Estimate
    at_least: float | None = None
    below: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the median meets the target; None where there is none."""
        if self.at_least is not None:
            return self.measured.median >= self.at_least
        return None if self.below is None else self.measured.median < self.below


def markdown(rows: Sequence[Row]) -> str:
    """Return the table as Markdown that also reads well in a terminal."""
    cells = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = tuple("-" * width for width in widths)
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (cells[0], rule, *cells[1:])
    ]
    return "\n".join(lines) + "\n"


def verdict(rows: Sequence[Row]) -> str:
    """Return one sentence: how many targets were met, and which were missed."""
    judged = [row for row in rows if row.met is not None]
    missed = [f"{row.benchmark}: {row.what}" for row in judged if not row.met]
    met = f"{len(judged) - len(missed)} of {len(judged)} targets met"
    return f"{met}; missed: {'; '.join(missed)}." if missed else f"{met}."


def as_csv(rows: Sequence[Row]) -> str:
    """Return the table as CSV, numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in rows:
        found = row.measured
        numbers = (row.at_least, row.below, found.median, found.low, found.high, found.n)
        writer.writerow([row.benchmark, row.what, row.unit, *numbers, _met(row)])
    return text.getvalue()


def _cells(row: Row) -> tuple[str, ...]:
    found, unit = row.measured, f" {row.unit}"
    target = "" if row.below is None else f"< {row.below:g}{unit}"
    if row.at_least is not None:
        target = f">= {row.at_least:g}{unit}"
    interval = f"{_number(found.low)} to {_number(found.high)}"
    return row.benchmark, row.what, target, _number(found.median) + unit, interval, str(found.n), _met(row)


def _met(row: Row) -> str:
    return "" if row.met is None else "yes" if row.met else "missed"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
