"""How a printed figure is read off the tidy rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from kvreclaim.study.published.claims import Estimate
from kvreclaim.study.rows import CLOSED_FORM, SIMULATED, Row
from kvreclaim.study.settings import HALF

Key = tuple[str, str, float, str]


class Table:
    """Tidy rows by experiment, policy, x and metric."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = {(row.kind, row.experiment, row.policy, row.x, row.metric): row for row in rows}

    def row(self, kind: str, experiment: str, policy: str, x: float, metric: str) -> Row:
        """Return one row; KeyError if there is none."""
        return self._rows[kind, experiment, policy, x, metric]


Source = Callable[[Table], Estimate]


def simulated(experiment: str, policy: str, x: float, metric: str) -> Source:
    """Read a simulated mean."""
    return lambda table: _mean(table.row(SIMULATED, experiment, policy, x, metric))


def closed_form(experiment: str, policy: str, x: float, metric: str) -> Source:
    """Read a closed form."""
    return lambda table: _mean(table.row(CLOSED_FORM, experiment, policy, x, metric))


def deviation(source: Source) -> Source:
    """Read the deviation between runs; of normal runs, its own deviation is 1/sqrt(2) of it."""

    def read(table: Table) -> Estimate:
        found = source(table)
        return Estimate(found.std, math.nan, found.n, found.std / math.sqrt(2))

    return read


def rare(source: Source, law: Source, blocks: int) -> Source:
    """Read the mean of a rare count of free blocks; its spread is at least that of a Poisson law."""

    def read(table: Table) -> Estimate:
        found = source(table)
        return replace(found, spread=max(found.std, _poisson_std(law(table).value, blocks)))

    return read


def rare_deviation(source: Source, law: Source, blocks: int) -> Source:
    """Read the deviation of a rare count; its own deviation, from a Poisson law's fourth moment, is large."""

    def read(table: Table) -> Estimate:
        found = source(table)
        events = law(table).value * blocks
        return Estimate(found.std, math.nan, found.n, math.sqrt(1.0 + 2.0 * events) / (2.0 * blocks))

    return read


def poisson_deviation(law: Source, blocks: int) -> Source:
    """Return the deviation that a Poisson law has, of a fraction of ``blocks``."""
    return lambda table: _point(_poisson_std(law(table).value, blocks))


def farthest(target: float, sources: Iterable[Source]) -> Source:
    """Read the one of several means that lies farthest from a target."""
    candidates = tuple(sources)
    return lambda table: max(
        (source(table) for source in candidates), key=lambda found: abs(found.value - target)
    )


def largest(sources: Iterable[Source]) -> Source:
    """Read the largest of several means."""
    candidates = tuple(sources)
    return lambda table: max((source(table) for source in candidates), key=lambda found: found.value)


def difference(first: Source, second: Source) -> Source:
    """Subtract two means of the same runs, without a spread: rows do not say how the runs pair."""
    return _combine(first, second, lambda a, b: a - b)


def quotient(first: Source, second: Source) -> Source:
    """Divide two means, without a spread."""
    return _combine(first, second, lambda a, b: a / b)


def offset(source: Source, by: float) -> Source:
    """Subtract a constant from a mean."""
    return lambda table: replace(source(table), value=source(table).value - by)


def share_at_eviction(policy: str) -> Source:
    """Read the share of the finally free blocks that the eviction itself freed."""

    def read(table: Table) -> Estimate:
        at, by = (
            table.row(SIMULATED, "compaction", policy, HALF, metric)
            for metric in ("free_at_eviction", "free_by_compaction")
        )
        free = at.mean + by.mean
        return Estimate(at.mean / free, at.std / free, at.n, at.std / free)

    return read


def _combine(first: Source, second: Source, operation: Callable[[float, float], float]) -> Source:
    def read(table: Table) -> Estimate:
        a, b = first(table), second(table)
        return Estimate(operation(a.value, b.value), math.nan, min(a.n, b.n), math.nan)

    return read


def _mean(row: Row) -> Estimate:
    return Estimate(row.mean, row.std, row.n, row.std)


def _point(value: float) -> Estimate:
    return Estimate(value, 0.0, 1, 0.0)


def _poisson_std(fraction: float, blocks: int) -> float:
    return math.sqrt(fraction / blocks)
