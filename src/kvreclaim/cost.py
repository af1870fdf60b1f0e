"""What a copy costs: seconds = fixed + seconds per run × runs + bytes / bandwidth.

A run is a stretch of consecutive bytes that one copy moves. Packing moves few bytes in many runs, so a price
by bytes alone can be far off: vllm-project/vllm#35990 saw a layer copied at 40 to 43 GB/s in 3 copies, and at
1 to 3 GB/s in 193.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from os import PathLike
from pathlib import Path
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.statistics import Interval
from kvreclaim.validate import fraction, non_negative_int, positive_int

RESAMPLES = 1000
LEAST_SAMPLES = 6  # twice the constants: below that an interval says nothing
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CopySample:
    """One measured copy: bytes moved, runs they were moved in, seconds that took."""

    moved_bytes: int
    runs: int
    seconds: float

    def __post_init__(self) -> None:
        positive_int(self.moved_bytes, "moved_bytes")
        positive_int(self.runs, "runs")
        if not self.seconds > 0 or self.seconds == float("inf"):
            raise InputError(f"seconds is {self.seconds!r}: pass the seconds that a copy took")


@dataclass(frozen=True)
class CopyCost:
    """Three constants of a machine and a way to copy.

    Parameters
    ----------
    fixed
        Seconds that any copy costs, at least 0.
    per_run
        Seconds that each run adds, at least 0.
    per_byte
        Seconds that each byte adds, at least 0: one over the bandwidth.

    Raises
    ------
    InputError
        If one of them is negative or not finite.
    """

    fixed: float
    per_run: float
    per_byte: float

    def __post_init__(self) -> None:
        for name in ("fixed", "per_run", "per_byte"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InputError(f"{name} is {value!r}: pass seconds, at least 0")

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second of one endless run; None where bytes cost nothing that could be measured."""
        return 1 / self.per_byte if self.per_byte else None

    @property
    def even_run_bytes(self) -> float | None:
        """Bytes of a run that cost as much as its overhead: shorter runs mostly wait; None as `bandwidth`."""
        return self.per_run / self.per_byte if self.per_byte else None

    def seconds(self, moved_bytes: SupportsIndex, runs: SupportsIndex, copies: SupportsIndex = 1) -> float:
        """Return the seconds to move so many bytes in so many runs; 0 if nothing moves.

        Parameters
        ----------
        moved_bytes, runs
            Of all copies together.
        copies
            How many: a pack makes one in each layer. Each costs the fixed seconds.

        Raises
        ------
        InputError
            If bytes or runs are not whole numbers of at least 0, copies not one of at least 1, or there are
            bytes without a run.
        """
        size, stretches = non_negative_int(moved_bytes, "moved_bytes"), non_negative_int(runs, "runs")
        times = positive_int(copies, "copies")
        if size and not stretches:
            raise InputError(f"{size} bytes in no run: pass runs of at least 1")
        return self.fixed * times + self.per_run * stretches + self.per_byte * size if size else 0.0


@dataclass(frozen=True)
class CopyFit:
    """A fit of `CopyCost` to measured copies.

    Attributes
    ----------
    cost
        The constants.
    fixed, per_run, per_byte
        Their bootstrap intervals.
    errors
        [samples], (predicted − measured) / measured.
    """

    cost: CopyCost
    fixed: Interval
    per_run: Interval
    per_byte: Interval
    errors: tuple[float, ...]

    @property
    def median_error(self) -> float:
        """Median of the errors' sizes."""
        return float(np.median(np.abs(self.errors)))

    @property
    def bandwidth(self) -> tuple[float | None, float | None]:
        """The bandwidth's interval, low and high; None for an end that is not bounded."""
        low, high = self.per_byte
        return (1 / high if high else None, 1 / low if low else None)


def read_copy_cost(path: str | PathLike[str], device: str, way: str) -> CopyCost:
    """Read the cost of one way to copy from a file that ``kvreclaim calibrate copy --json`` wrote.

    Raises
    ------
    InputError
        If the file is none of these, or that way on that device is not in it.
    """
    try:
        calibrated = json.loads(Path(path).read_bytes())
        found = [one for one in calibrated if (one["device"], one["way"]) == (device, way)]
        constants = [
            {name: one[name]["value"] for name in ("fixed_seconds", "seconds_per_run", "bytes_per_second")}
            for one in found
        ]
        costs = [
            CopyCost(
                fixed=float(one["fixed_seconds"]),
                per_run=float(one["seconds_per_run"]),
                per_byte=1 / one["bytes_per_second"] if one["bytes_per_second"] else 0.0,
            )
            for one in constants
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} holds no cost of copies: write it with kvreclaim calibrate copy --json"
        ) from error
    if len(costs) != 1:
        raise InputError(
            f"{path} has no cost of way {way} on {device}: write it with kvreclaim calibrate copy "
            f"--device {device} --way {way} --json"
        )
    return costs[0]


def fit_copy_cost(samples: Sequence[CopySample], confidence: float = 0.95, seed: int = 0) -> CopyFit:
    """Fit the three constants to measured copies, none of them negative.

    Least squares of the relative errors, so that a copy of microseconds counts as much as one of seconds;
    non-negative by trying each set of constants that may be 0 (the problem of Lawson and Hanson, 1974,
    chapter 23, with three unknowns). Intervals by bootstrap over the samples: they say how far these samples
    pin the constants down, and nothing of another machine.

    Parameters
    ----------
    samples
        At least 6, of at least two sizes and two numbers of runs.
    confidence
        Of the intervals, above 0 and below 1.
    seed
        The same seed gives the same intervals.

    Raises
    ------
    InputError
        If there are too few samples, or they can't tell bytes from runs.
    """
    level = fraction(confidence, "confidence")
    if len(samples) < LEAST_SAMPLES:
        raise InputError(f"{len(samples)} copies can't be fitted: pass at least {LEAST_SAMPLES}")
    seconds = np.array([sample.seconds for sample in samples])
    terms = np.array([(1.0, sample.runs, sample.moved_bytes) for sample in samples])
    if np.linalg.matrix_rank(terms / terms.max(axis=0)) < 3:
        raise InputError("the copies can't tell bytes from runs: pass several sizes, each in several numbers")
    relative = terms / seconds[:, None]
    constants = _non_negative(relative)
    generator = np.random.default_rng(seed)
    drawn = generator.integers(len(samples), size=(RESAMPLES, len(samples)))
    refitted = np.array([_non_negative(relative[rows]) for rows in drawn])
    tail = (1 - level) / 2
    low, high = np.quantile(refitted, [tail, 1 - tail], axis=0)
    fixed, per_run, per_byte = (Interval(*ends) for ends in zip(low.tolist(), high.tolist(), strict=True))
    errors = relative @ constants - 1
    return CopyFit(CopyCost(*constants.tolist()), fixed, per_run, per_byte, tuple(errors.tolist()))


def _non_negative(relative: Floats) -> Floats:
    """Return the constants ``[3]``, none negative, whose terms ``[samples, 3]`` come closest to 1 each."""
    best, least = np.zeros(3), np.inf
    ones = np.ones(len(relative))
    for chosen in chain.from_iterable(combinations(range(3), count) for count in (3, 2, 1)):
        scale = relative[:, chosen].max(axis=0)  # seconds, runs and bytes differ by orders of magnitude
        found = np.linalg.lstsq(relative[:, chosen] / scale, ones, rcond=None)[0] / scale
        residual = float(np.sum((relative[:, chosen] @ found - ones) ** 2))
        if (found >= 0).all() and residual < least:
            least = residual
            best = np.zeros(3)
            best[list(chosen)] = found
    return best
