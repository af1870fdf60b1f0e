"""Minimum-loss eviction: a chosen number of blocks free, at the least importance lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvreclaim.bounds import freed_range, minimum_loss_frontier
from kvreclaim.layout import BlockLayout
from kvreclaim.policies.base import BoolArray, Policy, Scores, Selector
from kvreclaim.policies.block_tables import TableScores
from kvreclaim.validate import fraction


@dataclass(frozen=True)
class MinimumLoss(Policy):
    """Frees a share of the blocks that could be freed, and loses the least importance that this costs.

    The points of the frontier between lowest-importance and whole-block eviction
    (`kvreclaim.bounds.minimum_loss_frontier`, which says how exact it is), of which reclaimability-aware
    eviction comes near some. All layers and heads that share a block table drop the same tokens: scores are
    summed over them.

    Parameters
    ----------
    share
        Share of the blocks that the evictions could free, in [0, 1], rounded to whole blocks.
    """

    name: ClassVar[str] = "minimum-loss"
    title: ClassVar[str] = "Minimum loss"
    share: float = 0.5

    def __post_init__(self) -> None:
        fraction(self.share, "share")

    def _selector(self, scores: Scores, layout: BlockLayout | None, /) -> Selector:
        tables = TableScores(scores, layout, self.name)
        # Where nothing matters, every choice is as good: any equal scores stand for those.
        rows = [row if row.any() else np.ones_like(row) for row in tables.scores]

        def keep(budget: int) -> BoolArray:
            evicted = scores.shape[-1] - budget
            freed = round(self.share * freed_range(scores.shape[-1], evicted, tables.block_size)[1])
            return tables.spread(
                np.stack([minimum_loss_frontier(row, evicted, tables.block_size, freed).keep for row in rows])
            )

        return keep
