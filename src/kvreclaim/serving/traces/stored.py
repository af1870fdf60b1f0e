"""A trace too long to hold: read once to know its size, and again, batch by batch, at each use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kvreclaim.serving.arrivals import Arrivals
from kvreclaim.serving.trace import Prefixes, Trace, check_latest, check_load
from kvreclaim.serving.traces.kinds import Kind
from kvreclaim.serving.traces.rows import Batch, Reading
from kvreclaim.serving.traces.tables import Table

LONG_GAP = 3600.0  # seconds without an arrival that a reader should hear of


@dataclass(frozen=True)
class MadeUp:
    """Arrivals in place of a file's own (see `arrivals.poisson`)."""

    rate: float
    burstiness: float
    seed: int


@dataclass(frozen=True)
class Source:
    """Rows of a table and what makes them requests.

    Parameters
    ----------
    table, kind
        What is read.
    rows
        The first so many only; None: all.
    made_up
        Arrivals in place of the file's own, if any.
    """

    table: Table
    kind: Kind
    rows: int | None
    made_up: MadeUp | None

    def batches(self, reading: Reading) -> Iterator[Batch]:
        """Yield what a reading of the rows yields, arrivals from the first on, or made up."""
        made, first = self.made_up, None
        arrivals = None
        if made is not None:
            arrivals = Arrivals(made.rate, made.burstiness, np.random.default_rng(made.seed))
        for batch in reading:
            first = batch.arrival[0] if first is None else first
            own = batch.arrival - first
            yield batch._replace(arrival=own if arrivals is None else arrivals.next(own.size))

    def reading(self) -> Reading:
        """Return a new pass over the rows."""
        return Reading(self.table, self.kind, self.rows)


@dataclass
class Outline:
    """What is known of a trace that has been read: its size, its longest and its mean request, its gaps."""

    requests: int = 0
    last: float = 0.0
    longest: tuple[int, int] = (0, 0)
    tokens: tuple[int, int] = (0, 0)
    gap: float = 0.0
    gap_from: float = 0.0

    def add(self, batch: Batch) -> None:
        """Take in the next requests."""
        gaps = np.diff(batch.arrival, prepend=self.last)
        widest = int(gaps.argmax())
        if gaps[widest] > self.gap:
            self.gap = float(gaps[widest])
            self.gap_from = float(batch.arrival[widest]) - self.gap
        lengths = (batch.prompt, batch.output)
        prompt, output = self.longest
        self.longest = max(prompt, int(lengths[0].max())), max(output, int(lengths[1].max()))
        prompt, output = self.tokens
        self.tokens = prompt + int(lengths[0].sum()), output + int(lengths[1].sum())
        self.requests += batch.arrival.size
        self.last = float(batch.arrival[-1])

    @property
    def notes(self) -> tuple[str, ...]:
        """The longest gap, if a reader should hear of it."""
        if self.gap <= LONG_GAP:
            return ()
        return (f"nothing arrives for {self.gap / 3600:.1f} h after {self.gap_from:.0f} s",)


@dataclass(frozen=True)
class StoredTrace:
    """A trace that is read again at each use (see `trace.Traffic`).

    Parameters
    ----------
    source
        Where it lies.
    outline
        What a first reading found.
    name, notes
        As of `Trace`.
    times
        How many times as fast the requests arrive.
    """

    source: Source
    outline: Outline
    name: str
    notes: tuple[str, ...] = ()
    times: float = 1.0

    @property
    def prefixes(self) -> Prefixes | None:
        """None: a trace with hashes is held."""
        return None

    @property
    def in_memory(self) -> bool:
        """It is not."""
        return False

    @property
    def requests(self) -> int:
        """How many requests."""
        return self.outline.requests

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.outline.last / self.times

    @property
    def longest(self) -> tuple[int, int]:
        """Tokens of the longest prompt, and of the longest output."""
        return self.outline.longest

    @property
    def mean(self) -> tuple[float, float]:
        """Tokens of a prompt, and of an output, in the mean."""
        prompt, output = self.outline.tokens
        return prompt / self.requests, output / self.requests

    def faster(self, times: float) -> StoredTrace:
        """Return the same requests arriving so many times as fast."""
        check_latest(self.span / check_load(times))
        return replace(self, times=self.times * times)

    def windows(self, size: int) -> Iterator[Trace]:
        """Yield the requests in order, at most so many at a time."""
        for batch in self.source.batches(self.source.reading()):
            part = Trace(batch.arrival / self.times, batch.prompt, batch.output, self.name)
            yield from part.windows(size)
