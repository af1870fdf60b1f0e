"""The interval of a rare count, where a mean and a standard deviation mean nothing."""

import math
from collections.abc import Callable
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.validate import check_at_most, fraction, non_negative_int

MOST_EVENTS = 10_000_000  # each is a term of the sums: more would fill the memory


def poisson_interval(count: SupportsIndex, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact central confidence interval of the mean of a Poisson count (Garwood, 1936).

    The ends are the means at which as many events or more, and as few or fewer, have probability
    (1 - confidence)/2 each; the lower end of a count of 0 is 0. Coverage is at least `confidence`. Counts of
    blocks freed by scattered eviction vary less than Poisson's, so for them it errs on the wide side.

    Parameters
    ----------
    count
        Events seen in all runs together, 0 to 10 million.
    confidence
        Above 0 and below 1.

    Returns
    -------
    (float, float)
        Lower and upper end of the expected count; divide by the trials for a rate.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    events = check_at_most(non_negative_int(count, "count"), MOST_EVENTS, "count", "the limit")
    level = fraction(confidence, "confidence")
    if not 0.0 < level < 1.0:
        raise InputError(f"confidence is {confidence!r}: pass a number above 0 and below 1")
    tail = (1.0 - level) / 2
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, events + 1)))])
    high = _falling_root(lambda mean: _at_most(mean, log_factorials) - tail, start=events + 1.0)
    if events == 0:
        return 0.0, high
    fewer = log_factorials[:-1]
    low = _falling_root(lambda mean: _at_most(mean, fewer) - (1.0 - tail), start=events + 1.0)
    return low, high


def _at_most(mean: float, log_factorials: NDArray[np.float64]) -> float:
    """Return P(X <= n) of a Poisson mean greater than 0, with the logarithms of 0! ... n! given."""
    events = np.arange(log_factorials.size)
    return float(np.exp(events * math.log(mean) - mean - log_factorials).sum())


def _falling_root(function: Callable[[float], float], start: float) -> float:
    """Return where a falling function of a positive number changes sign, to the last float."""
    low, high = 0.0, start
    while function(high) > 0.0:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        if function(middle) > 0.0:
            low = middle
        else:
            high = middle
    return high
