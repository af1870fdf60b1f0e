"""Block-joint eviction with swaps: whole blocks stay in place, and single pairs are copied into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim.policies.base import BoolArray, Selector, lowest
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
                movable = live[table] & ~tables.by_token(tables.stays)
                most = int(self.copies * len(rows) * tables.tokens)
                mask[rows] = _swapped(tables, rows, live[table], movable, most)
            return mask.reshape(tables.shape)

        return keep


def _swapped(
    tables: JointScores, rows: NDArray[np.int64], live: BoolArray, movable: BoolArray, most: int
) -> BoolArray:
    """Return what the heads of one table keep, ``[heads, tokens]``, after the best swaps.

    Parameters
    ----------
    tables, rows
        Scores, and the rows of the table.
    live, movable
        bool ``[tokens]``: kept by all heads before; those of them that may be thrown out.
    most
        Swaps at most.
    """
    kept = np.repeat(live[None], len(rows), axis=0)
    inside, outside = np.flatnonzero(movable), np.flatnonzero(~live)
    pairs = min(len(inside), len(outside))
    gain = np.empty((len(rows), pairs))
    for row, gained in zip(rows, gain, strict=True):
        scores = tables.scores[row]
        best, worst = np.sort(scores[outside])[::-1], np.sort(scores[inside])
        gained[:] = (best[:pairs] - worst[:pairs]) / tables.totals[row]
    swaps = min(most, int((gain > 0).sum()))
    taken = ~lowest(gain.ravel(), gain.size - swaps)
    for row, count, own in zip(rows, taken.reshape(gain.shape).sum(axis=1), kept, strict=True):
        scores = tables.scores[row]
        own[inside[lowest(scores[inside], count)]] = False
        own[outside[~lowest(scores[outside], len(outside) - count)]] = True
    return kept
