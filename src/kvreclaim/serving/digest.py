"""Durations of many requests in bounded memory: their number, their mean, their percentiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
EXACT = 1 << 22  # values that are held, 8 bytes each, before they are only counted
LEAST = 1e-9  # seconds that are told from 0
RATIO = 1.001  # from a bin's lower end to its upper end


class Digest:
    """Values that come in batches: up to so many are held and all answers exact, then they go into bins.

    A bin's end is `RATIO` times its beginning, and it stands for the value that is relatively as far from
    both: the sketch of Masson, Rim and Lee (DDSketch, VLDB 2019). Percentiles are then within `error` of the
    exact ones, or within `LEAST`.

    Parameters
    ----------
    exact
        The most values that are held.
    """

    def __init__(self, exact: int = EXACT) -> None:
        self._exact = exact
        self._held: list[Values] = []
        self._bins = np.zeros(0, np.int64)
        self._sums: list[float] = []
        self.count = 0

    def add(self, values: Values) -> None:
        """Take in a batch of values, each at least 0."""
        self.count += values.size
        self._held.append(values)
        if self.count > self._exact:
            for held in self._held:
                self._sums.append(float(held.sum()))
                found = np.bincount(_bins(held), minlength=self._bins.size)
                found[: self._bins.size] += self._bins
                self._bins = found
            self._held.clear()

    @property
    def error(self) -> float:
        """By how much of itself a percentile may be off; 0 while the values are held."""
        return (RATIO - 1) / (RATIO + 1) if self._bins.size else 0.0

    @property
    def mean(self) -> float | None:
        """The mean, the same in whatever batches held values came; None without values."""
        if not self.count:
            return None
        held = chain.from_iterable(values.tolist() for values in self._held)
        return math.fsum(chain(self._sums, held)) / self.count

    def some(self, *percents: float) -> list[float] | list[None]:
        """Return percentiles, or as many None without values."""
        return self.percentiles(percents).tolist() if self.count else [None] * len(percents)

    def percentiles(self, percents: Sequence[float]) -> Values:
        """Return percentiles of at least one value, between neighbours as NumPy's do."""
        place = np.asarray(percents) / 100 * (self.count - 1)
        low, high = self._at(np.stack([np.floor(place), np.ceil(place)]).astype(np.int64))
        part, between = place - np.floor(place), high - low
        # from the nearer of the two, to be rounded as NumPy's are
        return np.asarray(np.where(part < 0.5, low + between * part, high - between * (1 - part)))

    def _at(self, place: NDArray[np.int64]) -> Values:
        """Return the values at these places of the sorted values."""
        if not self._bins.size:
            ordered: Values = np.partition(np.concatenate(self._held), place.ravel())
            return ordered[place]
        found = np.searchsorted(np.cumsum(self._bins), place, side="right")
        middle = LEAST * RATIO ** (found - 1.0) * 2 * RATIO / (RATIO + 1)
        return np.where(found == 0, 0.0, middle)


def _bins(values: Values) -> NDArray[np.int64]:
    """Return the bin of each value: 0 under `LEAST`."""
    steps = np.floor(np.log(np.maximum(values, LEAST) / LEAST) / math.log(RATIO)).astype(np.int64)
    return np.where(values < LEAST, 0, steps + 1)
