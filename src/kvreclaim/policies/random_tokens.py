"""Random eviction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.layout import BlockLayout
from kvreclaim.policies.base import RankedPolicy, Scores, eviction_order, rank_of


@dataclass(frozen=True)
class RandomTokens(RankedPolicy):
    """Evicts tokens drawn without replacement, each head its own; the scores give the shape and nothing else.

    The scatter that q^B is about: a reference for the other policies, not a method anyone deploys.

    Parameters
    ----------
    seed
        Seed of the draw, an int or several, as `numpy.random.default_rng` takes them: the same seed, the
        same mask.
    """

    name: ClassVar[str] = "random"
    title: ClassVar[str] = "Random"
    seed: int | tuple[int, ...] = 0

    def __post_init__(self) -> None:
        seeds = self.seed if isinstance(self.seed, tuple) else (self.seed,)
        if not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
            raise InputError(f"seed is {self.seed!r}: pass a whole number of at least 0, or a tuple of them")

    def _eviction_rank(self, scores: Scores, _: BlockLayout | None, /) -> NDArray[np.intp]:
        return rank_of(eviction_order(np.random.default_rng(self.seed).random(scores.shape)))
