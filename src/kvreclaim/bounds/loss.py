"""What evicting the least important tokens loses: the Lorenz curves of the study's distributions.

Each function returns the share of all importance that the q lowest fraction of i.i.d. scores holds, in the
limit of many tokens. No policy that evicts that fraction can lose less.
"""

import math
from collections.abc import Callable
from functools import partial
from statistics import NormalDist

from kvreclaim.errors import InputError
from kvreclaim.validate import check_ratio, positive


def lognormal_loss(ratio: float, sigma: float = 1.0) -> float:
    """Return Phi(Phi^-1(q) - sigma), for scores exp(N(mu, sigma²)); .1587 at q = .5, sigma = 1.

    Parameters
    ----------
    ratio
        q, the evicted fraction of the tokens, in [0, 1].
    sigma
        Standard deviation of the logarithm, greater than 0.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    evicted = check_ratio(ratio)
    spread = positive(sigma, "sigma")
    if evicted in (0.0, 1.0):
        return evicted
    normal = NormalDist()
    return normal.cdf(normal.inv_cdf(evicted) - spread)


def uniform_loss(ratio: float) -> float:
    """Return q², for scores uniform on [0, 1]; errors as in `lognormal_loss`."""
    return check_ratio(ratio) ** 2


def exponential_loss(ratio: float) -> float:
    """Return q + (1-q) ln(1-q), for exponential scores; errors as in `lognormal_loss`."""
    evicted = check_ratio(ratio)
    if evicted == 1.0:
        return 1.0
    return max(0.0, evicted + (1.0 - evicted) * math.log1p(-evicted))


def pareto_loss(ratio: float, shape: float) -> float:
    """Return 1 - (1-q)^(1-1/a), for Pareto scores of a positive minimum and tail index a.

    NumPy's `Generator.pareto` draws them less 1. For a <= 2 the variance is infinite, and a sample's
    loss strays far from this limit.

    Parameters
    ----------
    ratio
        q, the evicted fraction of the tokens, in [0, 1].
    shape
        a, greater than 1: at 1 and below the mean is infinite.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    evicted = check_ratio(ratio)
    index = positive(shape, "shape")
    if index <= 1.0:
        raise InputError(f"shape is {shape!r}: pass more than 1, the mean is infinite otherwise")
    return float(1.0 - (1.0 - evicted) ** (1.0 - 1.0 / index))


_BY_NAME: dict[str, Callable[[float], float]] = {
    "lognormal": lognormal_loss,
    "uniform": uniform_loss,
    "exponential": exponential_loss,
    "pareto-2": partial(pareto_loss, shape=2.0),
    "pareto-1.5": partial(pareto_loss, shape=1.5),
}


def low_importance_loss(distribution: str, ratio: float) -> float:
    """Return the importance loss of evicting the lowest scores of one of the study's distributions.

    Parameters
    ----------
    distribution
        "lognormal" (sigma = 1), "uniform", "exponential", "pareto-2" or "pareto-1.5".
    ratio
        q, the evicted fraction of the tokens, in [0, 1].

    Raises
    ------
    InputError
        If the distribution is unknown or the ratio out of range.
    """
    if distribution not in _BY_NAME:
        raise InputError(f"unknown distribution {distribution!r}: pass one of {', '.join(_BY_NAME)}")
    return _BY_NAME[distribution](ratio)
