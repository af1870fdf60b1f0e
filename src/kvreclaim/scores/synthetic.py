"""Synthetic scores of the study: i.i.d. importance, a spatially correlated field, random clusters.

Every function draws from the generator it is given and nothing else. Importance is unitless; only its
ratios matter to a policy and to the importance loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.validate import check_at_most, fraction, non_negative_int, positive, positive_int

FloatArray = NDArray[np.float64]

_SAMPLERS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], FloatArray]] = MappingProxyType(
    {
        "lognormal": lambda rng, shape: rng.lognormal(0.0, 1.0, shape),
        "uniform": lambda rng, shape: rng.random(shape),
        "exponential": lambda rng, shape: rng.standard_exponential(shape),
        # NumPy's pareto starts at 0; the classical law, which the loss formula is for, starts at 1.
        "pareto-2": lambda rng, shape: rng.pareto(2.0, shape) + 1.0,
        "pareto-1.5": lambda rng, shape: rng.pareto(1.5, shape) + 1.0,
    }
)
DISTRIBUTIONS = tuple(_SAMPLERS)

# The Gaussian kernel is cut where it has fallen to exp(-8), a 3,000th.
_KERNEL_RADIUS_IN_WIDTHS = 4


def importance(
    rng: np.random.Generator, distribution: str, shape: SupportsIndex | tuple[int, ...]
) -> FloatArray:
    """Draw i.i.d. importance.

    Parameters
    ----------
    rng
        Source of the draws.
    distribution
        One of `DISTRIBUTIONS`: lognormal (mu 0, sigma 1), uniform on (0, 1), exponential (mean 1), and
        Pareto with minimum 1 and shape 2 or 1.5 (both of infinite variance).
    shape
        Shape of the result; a number is a length in tokens.

    Returns
    -------
    array
        Positive importance of that shape.

    Raises
    ------
    InputError
        If the distribution is unknown.
    """
    if distribution not in _SAMPLERS:
        raise InputError(f"unknown distribution {distribution!r}: pass one of {', '.join(DISTRIBUTIONS)}")
    return _SAMPLERS[distribution](rng, shape if isinstance(shape, tuple) else (int(shape),))


def correlated_importance(
    rng: np.random.Generator, tokens: SupportsIndex, rho: float, width: float = 50.0
) -> FloatArray:
    """Draw lognormal importance whose logarithm mixes white noise with a smooth field.

    z = sqrt(1 - rho) e + sqrt(rho) g and importance = exp(z); e is i.i.d. N(0, 1) and g white noise
    smoothed by a circular Gaussian kernel, standardised to mean 0 and deviation 1. The marginal law is
    lognormal at every rho, so only the geometry changes. e and g do not depend on rho: a generator in
    the same state gives the same noise and the same field for every value of it.

    Parameters
    ----------
    rng
        Source of the draws.
    tokens
        Length of the sequence, at least 2.
    rho
        Share of the variance that is spatially smooth, in [0, 1]: 0 is i.i.d., 1 the smooth field alone.
    width
        Standard deviation of the kernel in tokens.

    Returns
    -------
    array [tokens]
        Positive importance.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    length = positive_int(tokens, "tokens")
    if length == 1:
        raise InputError("a correlated field needs at least 2 tokens: pass a longer sequence")
    share = fraction(rho, "rho")
    noise = rng.standard_normal(length)
    field = _smooth(rng.standard_normal(length), positive(width, "width"))
    field = (field - field.mean()) / field.std()
    z: FloatArray = math.sqrt(1.0 - share) * noise + math.sqrt(share) * field
    return np.exp(z)


def random_clusters(
    rng: np.random.Generator, tokens: SupportsIndex, cluster_length: SupportsIndex, covered: SupportsIndex
) -> FloatArray:
    """Score tokens by the order in which clusters thrown at random cover them.

    Clusters of ``cluster_length`` consecutive tokens start uniformly in [0, tokens - cluster_length] and
    may overlap. The first token covered scores ``tokens``, the next one less, those never covered 0. So
    the ``covered`` best tokens are exactly the union of the clusters thrown until that many tokens are
    covered, the last cluster cut short. Length 1 is a draw without replacement.

    Parameters
    ----------
    rng
        Source of the starts.
    tokens
        Length of the sequence, at least 1.
    cluster_length
        Tokens of one cluster, from 1 to ``tokens``.
    covered
        Clusters are thrown until at least this many tokens are covered, at most ``tokens``.

    Returns
    -------
    array [tokens]
        Scores, distinct over the covered tokens.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    length = positive_int(tokens, "tokens")
    cluster = check_at_most(
        positive_int(cluster_length, "cluster_length"), length, "cluster_length", "tokens"
    )
    wanted = check_at_most(non_negative_int(covered, "covered"), length, "covered", "tokens")
    starts = np.empty(0, np.intp)
    scores = np.zeros(length)
    while np.count_nonzero(scores) < wanted:
        thrown = rng.integers(0, length - cluster, size=-(-length // cluster), endpoint=True)
        starts = np.concatenate([starts, thrown])
        order = _order_of_cover(starts, cluster, length)
        scores[order] = length - np.arange(len(order))
    return scores


def _order_of_cover(starts: NDArray[np.intp], cluster: int, length: int) -> NDArray[np.intp]:
    """Return the covered tokens in the order in which the clusters first reach them."""
    visits = (starts[:, None] + np.arange(cluster)).ravel()
    first_visit = np.full(length, len(visits))
    # Of repeated indices the last assignment holds, hence backwards: the earliest visit stays.
    first_visit[visits[::-1]] = np.arange(len(visits))[::-1]
    order = np.argsort(first_visit, kind="stable")
    return order[: np.count_nonzero(first_visit < len(visits))]


def _smooth(values: FloatArray, width: float) -> FloatArray:
    """Convolve circularly with exp(-j^2 / (2 width^2)), unnormalised, cut at `_KERNEL_RADIUS_IN_WIDTHS`."""
    radius = int(_KERNEL_RADIUS_IN_WIDTHS * width)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.zeros(len(values))
    np.add.at(kernel, offsets % len(values), np.exp(-(offsets**2) / (2.0 * width**2)))
    return np.fft.irfft(np.fft.rfft(values) * np.fft.rfft(kernel), n=len(values))
