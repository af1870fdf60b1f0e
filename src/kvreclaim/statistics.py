"""Intervals of shares and of medians, and the rising fit: what comparisons of measured policies rest on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.validate import check_at_most, fraction, non_negative_int, positive_int

Values = Sequence[float] | NDArray[np.float64]
Statistic = Callable[..., NDArray[np.float64]]
"""Takes an array and an axis, as `numpy.median` does."""

RESAMPLES = 10_000
MOST_FLIPPED = 16
RESAMPLED_VALUES = 1_000_000  # drawn at once: bounds the memory of a bootstrap to some 16 MB


class Interval(NamedTuple):
    """A confidence interval, both ends included."""

    low: float
    high: float

    def overlaps(self, other: Interval) -> bool:
        """Return whether the two intervals share a point."""
        return self.low <= other.high and other.low <= self.high


def wilson_interval(successes: SupportsIndex, trials: SupportsIndex, confidence: float = 0.95) -> Interval:
    """Return the score interval of a share (Wilson, 1927, JASA 22:209).

    Parameters
    ----------
    successes, trials
        Whole numbers, ``0 <= successes <= trials``, at least one trial.
    confidence
        Above 0 and below 1.

    Raises
    ------
    InputError
        If a number is out of range.
    """
    n = positive_int(trials, "trials")
    hits = check_at_most(non_negative_int(successes, "successes"), n, "successes", "trials")
    z = NormalDist().inv_cdf((1 + _level(confidence)) / 2)
    share, spread = hits / n, z * z / n
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / n + spread / (4 * n))
    # At the two ends the formula gives 0 and 1 up to rounding.
    return Interval(0.0 if hits == 0 else centre - half, 1.0 if hits == n else centre + half)


def bootstrap_interval(
    values: Values, statistic: Statistic = np.median, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Return the percentile bootstrap interval of a statistic (Efron and Tibshirani, 1993, chapter 13).

    With few values it is coarse: of five, the ends of a median's interval are among the five themselves.

    Parameters
    ----------
    values
        At least one finite number; of a single one the interval is that number.
    statistic
        Called with an array ``[resamples, values]`` and ``axis=1``.
    confidence
        Above 0 and below 1.
    seed
        The same seed gives the same interval.

    Raises
    ------
    InputError
        If there is no value, one is not finite, or the confidence is out of range.
    """
    sample = _finite(values, "the values of a bootstrap")
    tail = (1 - _level(confidence)) / 2
    generator = np.random.default_rng(seed)
    at_once = max(1, RESAMPLED_VALUES // len(sample))
    drawn = [
        statistic(generator.choice(sample, (min(at_once, RESAMPLES - start), len(sample))), axis=1)
        for start in range(0, RESAMPLES, at_once)
    ]
    low, high = np.quantile(np.concatenate(drawn), [tail, 1 - tail])
    return Interval(float(low), float(high))


def sign_flip_p(differences: Values) -> float:
    """Return the two-sided p-value of a mean difference of pairs, by flipping their signs (Fisher, 1935).

    Exact for up to 16 pairs, all 2 ** n ways; beyond, of 10,000 drawn ways. Five pairs give .0625 at least.

    Parameters
    ----------
    differences
        At least one finite number, ``[n]``.

    Raises
    ------
    InputError
        If there is no value, or one is not finite.
    """
    sample = _finite(differences, "the differences of pairs")
    if len(sample) <= MOST_FLIPPED:
        ways = np.arange(2 ** len(sample))[:, None] >> np.arange(len(sample)) & 1
    else:
        ways = np.random.default_rng(0).integers(0, 2, (RESAMPLES, len(sample)))
        ways[0] = 1  # as observed
    sums = np.abs((2 * ways - 1) @ sample)
    return float(np.mean(sums >= abs(sample.sum()) * (1 - 1e-12)))


def isotonic(values: Values, weights: Values | None = None) -> NDArray[np.float64]:
    """Return the nondecreasing sequence closest to the values in weighted squares, ``[n]``.

    Pool adjacent violators (Ayer et al., 1955): neighbours that fall are replaced by their weighted mean,
    until nothing falls.

    Parameters
    ----------
    values
        At least one finite number, ``[n]``.
    weights
        Positive numbers, ``[n]``; by default all 1.

    Raises
    ------
    InputError
        If the values or weights are not such numbers, or not equally many.
    """
    given = _finite(values, "the values of an isotonic fit")
    weighed = np.ones(len(given)) if weights is None else _finite(weights, "the weights of an isotonic fit")
    if len(weighed) != len(given) or (weighed <= 0).any():
        raise InputError(f"an isotonic fit of {len(given)} values needs as many weights, all greater than 0")
    pools: list[tuple[float, float, int]] = []  # mean, weight, values
    for mean, weight in zip(given.tolist(), weighed.tolist(), strict=True):
        count = 1
        while pools and pools[-1][0] > mean:
            last_mean, last_weight, last_count = pools.pop()
            mean = (last_mean * last_weight + mean * weight) / (last_weight + weight)
            weight, count = last_weight + weight, last_count + count
        pools.append((mean, weight, count))
    return np.repeat([pool[0] for pool in pools], [pool[2] for pool in pools])


def _level(confidence: float) -> float:
    level = fraction(confidence, "confidence")
    if not 0.0 < level < 1.0:
        raise InputError(f"confidence is {confidence!r}: pass a number above 0 and below 1")
    return level


def _finite(values: Values, what: str) -> NDArray[np.float64]:
    """Return the values as a float64 array ``[n]``, n at least 1; InputError if they are not such."""
    try:
        array = np.asarray(values)
    except ValueError:  # ragged nesting
        array = np.empty(0)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise InputError(f"{what} must be finite numbers: pass a list of at least one")
    return array.astype(np.float64)
