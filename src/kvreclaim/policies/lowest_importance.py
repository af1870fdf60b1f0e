"""Lowest-importance eviction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim.layout import BlockLayout
from kvreclaim.policies.base import RankedPolicy, Scores, eviction_order, rank_of


@dataclass(frozen=True)
class LowestImportance(RankedPolicy):
    """Evicts the tokens with the lowest scores, each head its own.

    No selection of that size loses less importance. On scores that are independent of position its
    holes fall like random ones, and so does its physical reclaim.
    """

    name: ClassVar[str] = "lowest-importance"
    title: ClassVar[str] = "Lowest importance"

    def _eviction_rank(self, scores: Scores, _: BlockLayout | None, /) -> NDArray[np.intp]:
        return rank_of(eviction_order(scores))
