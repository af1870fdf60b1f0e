"""PagedEviction: the whole block of the lowest mean score goes whenever a new one is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim.layout import BlockLayout
from kvreclaim.policies.base import RankedPolicy, Scores, eviction_order, rank_of
from kvreclaim.policies.block_tables import TableScores


@dataclass(frozen=True)
class PagedEviction(RankedPolicy):
    """Evicts whole blocks by the mean score of their tokens, the newest block last.

    While decoding, the block with the lowest mean leaves each time that a new one is full. A token's score,
    ‖V‖ / ‖K‖ (`value_key_ratio` among the attention scores), never changes, so evicting one block at a time
    leaves the blocks that evicting all at the end does, and so it is done here; the newest block is not up
    for eviction. In a shared table all layers and heads must drop the same block: their scores are averaged
    as they are. Chitty-Venkata et al., arXiv 2509.04377. The paper cuts the prompt token by token before it
    is paged: that is `LowestImportance` on the same scores, and packing.
    """

    name: ClassVar[str] = "paged-eviction"
    title: ClassVar[str] = "PagedEviction"

    def _eviction_rank(self, scores: Scores, layout: BlockLayout | None, /) -> NDArray[np.intp]:
        tables = TableScores(scores, layout, self.name)
        means = tables.block_sums(tables.scores) / tables.block_sums(np.ones_like(tables.scores))
        means[:, -1] = np.inf
        place_of_block = rank_of(eviction_order(means))
        order = np.lexsort((tables.scores, tables.by_token(place_of_block)))
        return tables.spread(rank_of(order))
