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
    head's sum, and gains only fall within a head: the highest gains of all heads, as many as the copy budget
    pays for, are the most that swaps can gain. A table frees all that the budget saves.

    Parameters
    ----------
    copies
        KV pairs that may be copied, as a share of all pairs of the prompt, in [0, 1].
    """

    name: ClassVar[str] = "block-swap"
    title: ClassVar[str] = "Block-joint + swaps"
    copies: float = 0.025

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(self.copies, "copies")

    def _by_table(self, tables: JointScores, /) -> Selector:
        order = tables.block_order()

        def keep(budget: int) -> BoolArray:
            mask = np.empty(tables.scores.shape, np.bool_)
            live = tables.keep_blocks(order, budget)
            for table, rows in enumerate(tables.rows):
                scores: NDArray[np.float64] = tables.scores[rows] / tables.totals[rows, None]
                movable = live[table] & ~tables.by_token(tables.stays)
                most = int(self.copies * scores.size)
                mask[rows] = _swapped(scores, live[table], movable, most)
            return mask.reshape(tables.shape)

        return keep


def _swapped(scores: NDArray[np.float64], live: BoolArray, movable: BoolArray, most: int) -> BoolArray:
    """Return what each head keeps, ``[heads, tokens]``, after the best swaps.

    Parameters
    ----------
    scores
        ``[heads, tokens]``, comparable between heads.
    live, movable
        bool ``[tokens]``: kept by all heads before; those of them that may be thrown out.
    most
        Swaps at most.
    """
    kept = np.repeat(live[None], len(scores), axis=0)
    inside, outside = np.flatnonzero(movable), np.flatnonzero(~live)
    pairs = min(len(inside), len(outside))
    lowest = inside[np.argsort(scores[:, inside], axis=1, kind="stable")[:, :pairs]]
    highest = outside[np.argsort(-scores[:, outside], axis=1, kind="stable")[:, :pairs]]
    gain = np.take_along_axis(scores, highest, axis=1) - np.take_along_axis(scores, lowest, axis=1)
    best = np.argsort(-gain, axis=None, kind="stable")[: min(most, np.count_nonzero(gain > 0))]
    head, place = np.unravel_index(best, gain.shape)
    kept[head, lowest[head, place]] = False
    kept[head, highest[head, place]] = True
    return kept
