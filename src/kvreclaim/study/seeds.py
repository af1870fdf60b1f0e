"""Seeds and random streams: one stream for each experiment, method and setting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from kvreclaim.study.settings import PUBLISHED_SEEDS
from kvreclaim.validate import check_at_most, non_negative_int, positive_int

MOST_RUNS = 10_000  # some 3 GiB of masks at once, and an hour


@dataclass(frozen=True)
class Seeds:
    """The seeds base, base + 1, ... of a batch of runs.

    Parameters
    ----------
    count
        Runs, 1 to `MOST_RUNS`; the study made 30.
    base
        The first seed, at least 0.

    Raises
    ------
    InputError
        If a number is out of range.
    """

    count: int = PUBLISHED_SEEDS
    base: int = 0

    def __post_init__(self) -> None:
        check_at_most(positive_int(self.count, "seeds"), MOST_RUNS, "seeds", "the most runs")
        non_negative_int(self.base, "seed_base")

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.base, self.base + self.count))

    def __len__(self) -> int:
        return self.count


def stream(seed: int, *parts: str | int) -> tuple[int, ...]:
    """Return the entropy of a run's stream, as `numpy.random.default_rng` takes it.

    Names count by their CRC-32, so that a new experiment or method shifts no other stream.
    """
    return (seed, *(crc32(part.encode()) if isinstance(part, str) else part for part in parts))


def generator(seed: int, *parts: str | int) -> np.random.Generator:
    """Return the generator of a run's stream."""
    return np.random.default_rng(stream(seed, *parts))
