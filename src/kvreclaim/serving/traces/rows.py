"""The rows of a trace table, batch by batch into compact arrays, each checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.serving.trace import LONGEST
from kvreclaim.serving.traces.kinds import Kind
from kvreclaim.serving.traces.tables import CSV_FIRST, Table, unreadable

_BATCH = 1 << 18  # rows
_NANO = 1e-9


class Batch(NamedTuple):
    """Checked rows as arrays (see `trace.Trace`); of prefix hashes, how many each has, and all of them."""

    arrival: NDArray[np.float64]
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    hashes: tuple[NDArray[np.int64], NDArray[np.int64]] | None


class Reading:
    """One pass over the rows of a table, batch by batch.

    Parameters
    ----------
    table, kind
        What is read.
    requests
        The first so many rows only; None: all.
    """

    def __init__(self, table: Table, kind: Kind, requests: int | None) -> None:
        self._table, self._kind = table, kind
        self._frame = table.frame if requests is None else table.frame.head(requests)
        self._checker = _Checker(table, kind)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out so far."""
        return self._checker.notes

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches, none empty; `InputError` at the first broken row, named by its line."""
        batches = (batch for batch in self._batches() if batch.arrival.size)
        yield from batches if self._kind.ordered else _sorted(list(batches))

    def _batches(self) -> Iterator[Batch]:
        try:
            selected = self._frame.select(*_expressions(self._table, self._kind))
            for read in selected.collect_batches(chunk_size=_BATCH, maintain_order=True, engine="streaming"):
                batch = self._checker.without_blank_end(read)
                columns = self._checker.check(batch)
                hashes = None if self._kind.hashes is None else self._checker.hashes(batch)
                self._checker.row += read.height - batch.height
                yield Batch(*columns, hashes)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise unreadable(self._table, error) from error


def _sorted(batches: list[Batch]) -> Iterator[Batch]:
    """Yield all rows in order of arrival, at once; a kind that is not in order has no hashes."""
    if batches:
        arrival, prompt, output = (np.concatenate([batch[place] for batch in batches]) for place in range(3))
        order = np.argsort(arrival, kind="stable")
        yield Batch(arrival[order], prompt[order], output[order], None)


class _Checker:
    """Checks batch after batch; knows the row it is at and the last arrival."""

    def __init__(self, table: Table, kind: Kind) -> None:
        self.table, self.kind = table, kind
        self.row, self.last = 0, -np.inf
        self.empty, self.first_empty = 0, 0
        self.served = np.zeros(0, np.bool_)
        self.blank: int | None = None  # the first of the blank lines at the end, as far as is known

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out."""
        if not self.empty:
            return ()
        where = self.table.where(self.first_empty).removeprefix(f"{self.table.file}, ")
        return (f"{self.empty:,} requests without prompt or output left out, the first in {where}",)

    def without_blank_end(self, batch: pl.DataFrame) -> pl.DataFrame:
        """Return a CSV's batch without blank lines at its end; refuse those that more rows follow."""
        if "blank" not in batch.columns:
            return batch
        blank = batch["blank"].to_numpy()
        rows = int(np.flatnonzero(~blank)[-1]) + 1 if not blank.all() else 0
        if self.blank is not None and rows:
            self._missing(self.blank)
        if rows < batch.height and self.blank is None:
            self.blank = self.row + rows
        return batch.head(rows)

    def check(self, batch: pl.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]]:
        arrival, prompt, output = (
            batch[name].to_numpy().astype(np.float64, copy=False) for name in ("arrival", "prompt", "output")
        )
        self._refuse(~np.isfinite(arrival), self.kind.arrival, "a time")
        for values, column in ((prompt, self.kind.prompt), (output, self.kind.output)):
            whole = np.isfinite(values) & (values >= 0) & (values <= LONGEST) & (values == np.floor(values))
            self._refuse(~whole, column, f"a whole number of tokens from 0 to {LONGEST}")
        if self.kind.arrival is not None and self.kind.seconds is not None:
            self._refuse(arrival < 0, self.kind.arrival, "a time of at least 0")
        if self.kind.ordered:
            self._refuse(
                np.diff(arrival, prepend=self.last) < 0, self.kind.arrival, "no earlier than the row above"
            )
        self.served = (prompt > 0) & (output > 0)
        self._count_empty()
        self.row += arrival.size
        self.last = float(arrival[-1]) if arrival.size else self.last
        served = self.served
        return arrival[served], prompt[served].astype(np.int32), output[served].astype(np.int32)

    def hashes(self, batch: pl.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lengths = batch["hashes"].list.len().fill_null(0).to_numpy().astype(np.int64)
        needed = -(-batch["prompt"].to_numpy() // self.kind.block_tokens)
        self.row -= batch.height
        self._refuse(
            lengths != needed, self.kind.hashes, f"one hash for every {self.kind.block_tokens} tokens"
        )
        self.row += batch.height
        kept = batch["hashes"].filter(pl.Series(self.served)).explode(empty_as_null=False)
        return lengths[self.served], kept.cast(pl.Int64).to_numpy()

    def _count_empty(self) -> None:
        missing = np.flatnonzero(~self.served)
        if missing.size and not self.empty:
            self.first_empty = self.row + int(missing[0])
        self.empty += missing.size

    def _refuse(self, wrong: NDArray[np.bool_], column: str | None, expected: str) -> None:
        if not wrong.any():
            return
        row = self.row + int(wrong.argmax())
        value = self.table.frame.slice(row, 1).select(str(column)).collect().item()
        if isinstance(value, pl.Series):
            shown = f"a list of {value.len():,}"
        else:
            shown = "missing" if value is None else f"{str(value)[:40]!r}"
        raise InputError(f"{self.table.where(row)}: {column} is {shown}; pass {expected}")

    def _missing(self, row: int) -> None:
        raise InputError(f"{self.table.where(row)}: is blank, and rows follow; pass a whole trace")


def _expressions(table: Table, kind: Kind) -> list[pl.Expr]:
    """Return arrival in seconds, prompt and output as float64 (NaN where unreadable), and hashes."""
    schema = table.frame.collect_schema()
    arrival = pl.lit(0.0)
    if kind.arrival is not None:
        if kind.seconds is None:
            arrival = _seconds(table.frame, _date(kind.arrival, schema[kind.arrival] == pl.String))
        else:
            arrival = _number(kind.arrival, schema[kind.arrival]) * kind.seconds
    found = [arrival.fill_null(float("nan")).alias("arrival")]
    for name, column in (("prompt", kind.prompt), ("output", kind.output)):
        found.append(_number(column, schema[column]).fill_null(float("nan")).alias(name))
    if table.first_line == CSV_FIRST:
        found.append(pl.all_horizontal(pl.all().is_null()).alias("blank"))
    if kind.hashes is not None:
        found.append(pl.col(kind.hashes).cast(pl.List(pl.Int64), strict=False).alias("hashes"))
    return found


def _number(column: str, kind: pl.DataType | type[pl.DataType]) -> pl.Expr:
    """Return a column's numbers, null where a value is none; yes and no are none."""
    if kind == pl.Boolean:
        return pl.lit(None, pl.Float64)
    text = kind == pl.String
    source = pl.col(column).str.strip_chars() if text else pl.col(column)
    return source.cast(pl.Float64, strict=False)


def _date(column: str, text: bool) -> pl.Expr:
    """Return dates with times; Azure's texts have up to seven digits, and in 2024 an offset of 0."""
    date = pl.col(column)
    if text:
        bare = date.str.strip_chars().str.strip_suffix("+00:00")
        date = bare.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False)
    return date.cast(pl.Datetime("ns"))


def _seconds(frame: pl.LazyFrame, date: pl.Expr) -> pl.Expr:
    """Return dates as seconds from the first row's, exact to the nanosecond: a float holds no whole date."""
    first = frame.head(1).select(date.alias("first").dt.epoch("ns")).collect()
    start = first.item() if first.height else None
    return (date.dt.epoch("ns") - pl.lit(start, pl.Int64)).cast(pl.Float64) * _NANO
