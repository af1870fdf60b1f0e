"""Reclaimability-aware eviction: part of the budget on the lowest tokens, the rest on whole blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim.layout import BlockLayout
from kvreclaim.policies.base import BoolArray, Policy, Scores, Selector, eviction_order, rank_of
from kvreclaim.policies.block_tables import TableScores
from kvreclaim.validate import fraction


@dataclass(frozen=True)
class ReclaimabilityAware(Policy):
    """Evicts for the least quality loss per reclaimed block.

    A share ``beta`` of the evictions takes the lowest tokens anywhere; then blocks are cleared in ascending
    order of the importance that is left in them, up to the first that does not fit; what is left, fewer
    tokens than a block, takes the lowest live tokens. ``beta`` slides along a trade-off: 0 is close to
    block-wise, 1 is lowest-importance. All layers and heads that share a block table drop the same
    tokens: scores are summed over them.

    The published study names such a policy without defining it; this form was found by matching its
    outputs.

    Parameters
    ----------
    beta
        Share of the evictions spent on single tokens first, in [0, 1].
    """

    name: ClassVar[str] = "reclaimability-aware"
    title: ClassVar[str] = "Reclaimability-aware"
    beta: float = 0.5

    def __post_init__(self) -> None:
        fraction(self.beta, "beta")

    def _selector(self, scores: Scores, layout: BlockLayout | None, /) -> Selector:
        tables = TableScores(scores, layout, self.name)
        order = eviction_order(tables.scores)
        rank = rank_of(order)

        def keep(budget: int) -> BoolArray:
            evictions = scores.shape[-1] - budget
            single = int(self.beta * evictions)
            live = rank >= single
            live &= ~_cheapest_blocks(tables, live, evictions - single)
            _evict_lowest(live, order, budget)
            return tables.spread(live)

        return keep


def _cheapest_blocks(tables: TableScores, live: BoolArray, affordable: int) -> BoolArray:
    """Mark [tables, tokens] of the blocks with the least live importance that are affordable together."""
    residual = tables.block_sums(np.where(live, tables.scores, 0))
    order = eviction_order(residual)
    count = np.take_along_axis(tables.block_sums(live), order, axis=-1)
    cleared = np.empty(order.shape, np.bool_)
    np.put_along_axis(cleared, order, np.cumsum(count, axis=-1) <= affordable, axis=-1)
    return tables.by_token(cleared)


def _evict_lowest(live: BoolArray, order: NDArray[np.intp], budget: int) -> None:
    """Mark the lowest live tokens of each table dead until ``budget`` are left; `order` ascends in score."""
    for row, ascending in zip(live, order, strict=True):
        surplus = np.count_nonzero(row) - budget
        row[ascending[row[ascending]][:surplus]] = False
