"""Made-up traffic: Poisson and bursty arrivals, with lengths of a given distribution or of a trace."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.serving.trace import Trace
from kvreclaim.validate import positive, positive_int


@dataclass(frozen=True)
class Lengths:
    """A log-normal distribution of token counts, by its median and its 90th percentile.

    Parameters
    ----------
    median, p90
        Tokens; equal for a constant length.
    longest
        What is longer is cut to it.

    Raises
    ------
    InputError
        If the median is under 1, or the 90th percentile under the median.
    """

    median: float
    p90: float
    longest: int = 131_072

    def __post_init__(self) -> None:
        if not 1 <= self.median <= self.p90 < math.inf:
            raise InputError(
                f"lengths of median {self.median} and 90th percentile {self.p90}: pass 1 <= median <= p90"
            )
        positive_int(self.longest, "the longest length")

    def draw(self, count: int, random: np.random.Generator) -> NDArray[np.int32]:
        """Return so many lengths, int32, each at least 1."""
        sigma = math.log(self.p90 / self.median) / _NORMAL_90
        drawn = np.rint(random.lognormal(math.log(self.median), sigma, count))
        return np.clip(drawn, 1, self.longest).astype(np.int32)


_NORMAL_90 = 1.2815515655446004  # 90th percentile of the standard normal distribution


def poisson(
    requests: int, rate: float, prompt: Lengths, output: Lengths, *, burstiness: float = 1.0, seed: int = 0
) -> Trace:
    """Return synthetic traffic: gamma-distributed gaps between arrivals, as `vllm bench serve` makes them.

    Parameters
    ----------
    requests
        How many.
    rate
        Mean arrivals a second.
    prompt, output
        Distributions of the lengths.
    burstiness
        Shape of the gamma distribution: 1 is a Poisson process, less is burstier, more is steadier. The
        gaps' coefficient of variation is ``burstiness ** -.5``.
    seed
        Of the random numbers.

    Raises
    ------
    InputError
        If a number is not positive.
    """
    count, random = positive_int(requests, "requests"), np.random.default_rng(seed)
    arrival = Arrivals(rate, burstiness, random).next(count)
    return Trace(arrival, prompt.draw(count, random), output.draw(count, random), name=f"poisson-{rate:g}")


def arriving(lengths: Trace, rate: float, *, burstiness: float = 1.0, seed: int = 0) -> Trace:
    """Return the requests of a trace, their order and lengths kept, with made-up arrivals (see `poisson`)."""
    arrival = Arrivals(rate, burstiness, np.random.default_rng(seed)).next(lengths.requests)
    return Trace(arrival, lengths.prompt, lengths.output, lengths.name, lengths.prefixes, lengths.notes)


class Arrivals:
    """Made-up arrivals, some after some: in whatever portions, they are the same.

    Parameters
    ----------
    rate, burstiness
        See `poisson`.
    random
        What draws the gaps.

    Raises
    ------
    InputError
        If a number is not positive.
    """

    def __init__(self, rate: float, burstiness: float, random: np.random.Generator) -> None:
        self._shape, self._random = positive(burstiness, "the burstiness"), random
        self._scale = 1 / (positive(rate, "the rate") * self._shape)
        self._last: float | None = None

    def next(self, count: int) -> NDArray[np.float64]:
        """Return the next arrivals, at least 1; the very first is at 0."""
        gaps = self._random.gamma(self._shape, self._scale, count)
        gaps[0] = 0.0 if self._last is None else self._last + gaps[0]
        arrival = np.cumsum(gaps)
        self._last = float(arrival[-1])
        return arrival
