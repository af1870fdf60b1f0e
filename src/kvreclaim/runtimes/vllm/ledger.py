"""The observed ledger of an engine: records to listeners, tables to a folder, totals for Prometheus.

- ``steps-000.csv``, ``evictions-000.csv``, ...: whole files of at most `PART` rows; the last one grows
- ``counters.json``: the totals, written after each eviction and read at each scrape
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kvreclaim.errors import InputError
from kvreclaim.results import ResultsFolder, as_csv, check_writable
from kvreclaim.runtimes.vllm.records import (
    EVICTION_COLUMNS,
    STEP_COLUMNS,
    EvictionRecord,
    StepRecord,
    as_row,
)

PART = 10_000
"""Rows of a table's part: memory and each write stay bounded on a long-running server."""

FLUSH = 500
"""Steps after which the tables are written, if the engine has not come to rest before."""

COUNTERS = "counters.json"
_PART_NAME = re.compile(r"(steps|evictions)-\d{3,}\.csv")
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper ends, in seconds, of the histogram of evictions."""


class Listener(Protocol):
    """Who is told of each record as it comes."""

    def on_step(self, record: StepRecord, /) -> None:
        """Take a step's record."""

    def on_eviction(self, record: EvictionRecord, /) -> None:
        """Take an eviction's record."""


@dataclass
class Counters:
    """Totals since the engine started.

    Attributes
    ----------
    blocks_freed, pairs_moved, bytes_moved, evictions
        Sums over the evictions.
    seconds
        Their time, scores included.
    buckets
        Evictions that took at most the seconds of each entry of `BUCKETS`.
    stranded_ratio
        Dead pairs in held blocks, as a share of the filled pairs held, over all running requests, now; None
        where none is held.
    """

    blocks_freed: int = 0
    pairs_moved: int = 0
    bytes_moved: int = 0
    evictions: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))
    stranded_ratio: float | None = None

    def add(self, record: EvictionRecord) -> None:
        """Add an eviction."""
        took = record.seconds + record.score_seconds
        self.blocks_freed += record.blocks_freed
        self.pairs_moved += record.moved_pairs
        self.bytes_moved += record.moved_bytes
        self.evictions += 1
        self.seconds += took
        self.buckets = [count + (took <= end) for count, end in zip(self.buckets, BUCKETS, strict=True)]


class _Table:
    """A table that is written in parts."""

    def __init__(self, name: str, columns: tuple[str, ...]) -> None:
        self._name, self._columns = name, columns
        self._rows: list[dict[str, Any]] = []
        self._part = 0
        self._unwritten = False

    def add(self, row: dict[str, Any], folder: ResultsFolder) -> None:
        self._rows.append(row)
        self._unwritten = True
        if len(self._rows) == PART:
            self.write(folder)
            self._rows, self._part = [], self._part + 1

    def write(self, folder: ResultsFolder) -> None:
        if self._unwritten:
            folder.write(f"{self._name}-{self._part:03d}.csv", as_csv(self._columns, self._rows))
            self._unwritten = False


class Ledger:
    """Takes the records of one engine.

    Parameters
    ----------
    folder
        Where tables and totals are written; None writes none.

    Attributes
    ----------
    listeners
        Told of each record; add and remove at will.
    counters
        The totals.

    Raises
    ------
    InputError
        If there can be no such folder, or a command's results lie in it.
    """

    def __init__(self, folder: str | None) -> None:
        self.listeners: list[Listener] = []
        self.counters = Counters()
        self._folder = None if folder is None else ResultsFolder(folder)
        self._steps = _Table("steps", STEP_COLUMNS)
        self._evictions = _Table("evictions", EVICTION_COLUMNS)
        self._since_flush = 0
        if self._folder is not None:
            if (self._folder.path / "run.json").exists():
                raise InputError(f"records {folder}: holds the results of a command; pass another folder")
            check_writable(self._folder.place(COUNTERS))

    def start(self) -> None:
        """Take the folder over: an earlier engine's tables go, and the totals stand at 0."""
        if self._folder is not None:
            for old in self._folder.path.glob("*-*.csv"):
                if _PART_NAME.fullmatch(old.name):  # a longer run's later parts are none of this one's
                    old.unlink()
        self._write_counters()

    def add_step(self, record: StepRecord, stranded_ratio: float | None, at_rest: bool) -> None:
        """Take a step; ``at_rest`` says that no request is left."""
        for listener in self.listeners:
            listener.on_step(record)
        self.counters.stranded_ratio = stranded_ratio
        if self._folder is not None:
            self._steps.add(as_row(record), self._folder)
            self._since_flush += 1
            if at_rest or self._since_flush >= FLUSH:
                self.flush()

    def add_eviction(self, record: EvictionRecord) -> None:
        """Take an eviction."""
        for listener in self.listeners:
            listener.on_eviction(record)
        self.counters.add(record)
        if self._folder is not None:
            self._evictions.add(as_row(record), self._folder)
            self._write_counters()

    def flush(self) -> None:
        """Write what is not written yet."""
        if self._folder is not None:
            self._steps.write(self._folder)
            self._evictions.write(self._folder)
            self._write_counters()
            self._since_flush = 0

    def _write_counters(self) -> None:
        if self._folder is not None:
            self._folder.write(COUNTERS, json.dumps(asdict(self.counters)))


def read_counters(folder: str) -> Counters:
    """Return the totals that an engine wrote to a folder; zeros where it has not written any yet."""
    try:
        return Counters(**json.loads((Path(folder) / COUNTERS).read_bytes()))
    except FileNotFoundError:
        return Counters()
