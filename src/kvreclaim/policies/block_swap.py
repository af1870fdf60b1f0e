"""Block-joint eviction with swaps: whole blocks stay in place, and single pairs are copied into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim.policies.base import BoolArray, Selector
from kvreclaim.policies.joint import JointPolicy, JointScores
from kvreclaim.validate import fraction


@dataclass(frozen=True)
class BlockSwap(JointPolicy):
    """Keeps the blocks of `BlockJoint`, and swaps a head's worst tokens in them for its best outside.

    A slot of a kept block may hold another token in each head: attention doesn't ask where a pair lies. So a
    head's lowest kept token is overwritten by its highest evicted one, a copy of one KV pair; the next lowest
    by the next highest. Each swap gains the difference of their scores, made comparable between heads by each
    head's sum, and gains only fall within a head: taking the highest gains of all heads, as many as the copy
    budget pays for, gains the most that any swaps could. A table frees all that the budget saves.

    Parameters
    ----------
    copies
        KV pairs that may be copied, as a share of all pairs of the prompt, in [0, 1].
    """

    name: ClassVar[str] = "block-swap"
    title: ClassVar[str] = "Block-joint + swaps"
    copies: float = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(self.copies, "copies")

    def _by_table(self, tables: JointScores, /) -> Selector:
        order = tables.block_order()

        def keep(budget: int) -> BoolArray:
            kept, surplus = tables.first_to_go(order, budget)
            live = tables.by_token(kept)
            tables.trim(live, order, surplus)
            mask = tables.spread(live).reshape(tables.scores.shape)
            for rows in tables.rows:
                mask[rows] = _swapped(tables, rows, mask[rows], int(self.copies * len(rows) * tables.tokens))
            return mask.reshape(tables.shape)

        return keep


def _swapped(tables: JointScores, rows: NDArray[np.int64], live: BoolArray, most: int) -> BoolArray:
    """Return the rows ``[heads, tokens]`` of one table with up to ``most`` swaps, the best ones."""
    movable = ~tables.by_token(tables.stays)
    inside = np.flatnonzero(live[0] & movable)  # the same in every head of the table
    outside = np.flatnonzero(~live[0])
    pairs = min(len(inside), len(outside))
    scores = tables.scores[rows] / tables.totals[rows, None]
    lowest = inside[np.argsort(scores[:, inside], axis=1, kind="stable")[:, :pairs]]
    highest = outside[np.argsort(-scores[:, outside], axis=1, kind="stable")[:, :pairs]]
    gain = np.take_along_axis(scores, highest, axis=1) - np.take_along_axis(scores, lowest, axis=1)
    best = np.argsort(-gain, axis=None, kind="stable")[: min(most, np.count_nonzero(gain > 0))]
    head, place = np.unravel_index(best, gain.shape)
    swapped = live.copy()
    swapped[head, lowest[head, place]] = False
    swapped[head, highest[head, place]] = True
    return swapped
