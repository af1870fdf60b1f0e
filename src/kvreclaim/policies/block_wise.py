"""Whole-block eviction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim.layout import BlockLayout
from kvreclaim.policies.base import RankedPolicy, Scores, eviction_order, rank_of
from kvreclaim.policies.block_tables import TableScores


@dataclass(frozen=True)
class BlockWise(RankedPolicy):
    """Evicts whole blocks in ascending order of their summed scores.

    What is left of the evictions, fewer tokens than a block, takes the lowest tokens of the next block. All
    layers and heads that share a block table drop the same tokens: scores are summed over them.
    """

    name: ClassVar[str] = "block-wise"
    title: ClassVar[str] = "Block-wise"

    def _eviction_rank(self, scores: Scores, layout: BlockLayout | None, /) -> NDArray[np.intp]:
        tables = TableScores(scores, layout, self.name)
        place_of_block = rank_of(eviction_order(tables.block_sums(tables.scores)))
        order = np.lexsort((tables.scores, tables.by_token(place_of_block)))
        return tables.spread(rank_of(order))
