"""Tidy rows: what every experiment returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kvreclaim.bounds import poisson_interval

CLOSED_FORM = "closed form"
SIMULATED = "simulated"


@dataclass(frozen=True)
class Row:
    """One number with its spread, its count and its kind.

    Parameters
    ----------
    experiment
        Name of the experiment; a setting of it follows a slash.
    policy
        Name of the policy.
    x_name, x
        The quantity that is varied, and its value.
    metric
        What is counted.
    kind
        ``closed form`` or ``simulated``.
    mean, std, n
        Mean and population standard deviation over n runs in which the metric is defined; NaN if n is 0.
        A sum over the runs, and the ends of its interval, stand in ``mean`` with a deviation of 0. Of a
        closed form n is the number of equally likely cases that it is over.
    """

    experiment: str
    policy: str
    x_name: str
    x: float
    metric: str
    kind: str
    mean: float
    std: float
    n: int


@dataclass(frozen=True)
class Point:
    """A policy at one value of what an experiment varies; makes the rows of its metrics."""

    experiment: str
    policy: str
    x_name: str
    x: float

    def simulated(self, metrics: Mapping[str, ArrayLike]) -> list[Row]:
        """Return a row for each metric; one value per run, NaN where it is undefined."""
        return [self._row(metric, SIMULATED, *mean_and_std(values)) for metric, values in metrics.items()]

    def closed_form(self, metrics: Mapping[str, ArrayLike]) -> list[Row]:
        """Return a row for each metric; several values are those of equally likely cases."""
        return [self._row(metric, CLOSED_FORM, *mean_and_std(values)) for metric, values in metrics.items()]

    def statistic(self, metric: str, value: float, std: float, n: int) -> Row:
        """Return the row of a simulated statistic that is no mean over the runs."""
        return self._row(metric, SIMULATED, value, std, n)

    def rare_count(self, free_blocks: ArrayLike) -> list[Row]:
        """Return the blocks freed in all runs together, and the 95 % interval of that count's expectation."""
        counts = np.asarray(free_blocks)
        total = int(counts.sum())
        low, high = poisson_interval(total)
        found = {"free_blocks_total": total, "free_blocks_low": low, "free_blocks_high": high}
        return [self.statistic(metric, float(value), 0.0, counts.size) for metric, value in found.items()]

    def _row(self, metric: str, kind: str, mean: float, std: float, n: int) -> Row:
        return Row(self.experiment, self.policy, self.x_name, float(self.x), metric, kind, mean, std, n)


def mean_and_std(values: ArrayLike) -> tuple[float, float, int]:
    """Return mean, population standard deviation and count of the values that are not NaN."""
    numbers = np.asarray(values, np.float64).ravel()
    defined = numbers[~np.isnan(numbers)]
    if defined.size == 0:
        return np.nan, np.nan, 0
    if np.all(defined == defined[0]):  # spares equal runs a deviation of rounding
        return float(defined[0]), 0.0, defined.size
    return float(defined.mean()), float(defined.std()), defined.size


def flatten(rows: Iterable[Iterable[Row]]) -> list[Row]:
    """Chain lists of rows."""
    return [row for group in rows for row in group]
