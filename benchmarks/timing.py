"""Timings that a shared machine can't fool: in turn, pair by pair, a median with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

PAIRS = 11


@dataclass(frozen=True)
class Estimate:
    """The median of ``n`` timings or ratios, and its 95 % interval."""

    median: float
    low: float
    high: float
    n: int


def in_turn(functions: Sequence[Callable[[], Any]], rounds: int = PAIRS) -> NDArray[np.float64]:
    """Time functions in turn, A B C A B C ..., after one call of each that does not count.

    What slows the machine for a while slows all of them, so their ratio in a round stands.

    Returns
    -------
    array ``[functions, rounds]``
        Seconds.
    """
    for function in functions:
        function()
    seconds = np.empty((rounds, len(functions)))
    for row in seconds:
        for column, function in enumerate(functions):
            start = perf_counter()
            function()
            row[column] = perf_counter() - start
    return seconds.T


def estimate(values: ArrayLike) -> Estimate:
    """Return the median and the interval that holds the true one with at least 95 % probability.

    Its ends are order statistics: the k-th smallest and the k-th largest, with k from the binomial law of
    how many values lie below the true median. Fewer than six values can't give 95 %: then it is all of them.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    n = len(ordered)
    k = next(k for k in range(n) if sum(comb(n, below) for below in range(k + 1)) > 0.025 * 2**n)
    k = max(k, 1)
    return Estimate(float(np.median(ordered)), float(ordered[k - 1]), float(ordered[n - k]), n)
