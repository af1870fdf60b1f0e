"""Block-joint eviction with swaps: whole blocks stay in place, and single pairs are copied into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim.policies.base import BoolArray, Selector
from kvreclaim.policies.joint import JointPolicy, JointScores
from kvreclaim.validate import fraction

Floats = NDArray[np.float64]

ROUNDS = 5
"""Times that blocks and swaps are chosen in turn; on real scores the later ones hardly gain."""


@dataclass(frozen=True)
class BlockSwap(JointPolicy):
    """Keeps whole blocks, and swaps a head's worst tokens in them for its best outside.

    A slot of a kept block may hold another token in each head: attention doesn't ask where a pair lies. So a
    head's lowest kept token is overwritten by its highest evicted one, a copy of one KV pair; the next lowest
    by the next highest. Each swap gains the difference of their scores, and gains only fall within a head:
    the highest gains of all heads, as many as the copy budget pays for, are the most that swaps can gain. A
    table frees all that the budget saves.

    Blocks and swaps are chosen in turn. First the blocks of `BlockJoint`; then, as swaps will bring the best
    tokens in and throw the worst out, a token counts for its block only between what a slot of its head is
    worth (the score of the next token to be thrown out) and that plus what a copy is worth (the gain of the
    last swap): the dual values of slots and copies. The round that keeps the highest scores counts. Scores
    are made comparable by each head's sum; ``heads`` and ``tokens`` matter in the first round alone.

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
        first = tables.block_order()

        def keep(budget: int) -> BoolArray:
            order, mask = first.copy(), np.empty(tables.scores.shape, np.bool_)
            highest = np.full(len(tables.rows), -np.inf)
            for _ in range(ROUNDS):
                live = tables.keep_blocks(order, budget)
                for table, rows in enumerate(tables.rows):
                    scores: Floats = tables.scores[rows] / tables.totals[rows, None]
                    swaps = _Swaps(tables, scores, live[table], int(self.copies * scores.size))
                    kept = float(scores[swaps.kept].sum())
                    if kept > highest[table]:
                        highest[table], mask[rows] = kept, swaps.kept
                    worth = np.clip(scores, swaps.slot_worth, swaps.slot_worth + swaps.copy_worth)
                    order[table] = tables.order_of(worth)
            return mask.reshape(tables.shape)

        return keep


class _Swaps:
    """The best swaps into one set of kept tokens.

    Attributes
    ----------
    kept
        bool ``[heads, tokens]``, after the swaps.
    slot_worth
        ``[heads, 1]``: the score of the next token that a head would throw out.
    copy_worth
        What the last swap gained.
    """

    def __init__(self, tables: JointScores, scores: Floats, live: BoolArray, most: int) -> None:
        movable = live & ~tables.by_token(tables.stays)
        inside, outside = np.flatnonzero(movable), np.flatnonzero(~live)
        self.kept = np.repeat(live[None], len(scores), axis=0)
        self.slot_worth, self.copy_worth = np.zeros((len(scores), 1)), np.inf
        pairs = min(len(inside), len(outside))
        if not pairs:
            return
        lowest = inside[np.argsort(scores[:, inside], axis=1, kind="stable")[:, :pairs]]
        highest = outside[np.argsort(-scores[:, outside], axis=1, kind="stable")[:, :pairs]]
        worst = np.take_along_axis(scores, lowest, axis=1)
        gain = np.take_along_axis(scores, highest, axis=1) - worst
        best = np.argsort(-gain, axis=None, kind="stable")[: min(most, np.count_nonzero(gain > 0))]
        head, place = np.unravel_index(best, gain.shape)
        self.kept[head, lowest[head, place]] = False
        self.kept[head, highest[head, place]] = True
        next_out = np.minimum(np.bincount(head, minlength=len(scores)), pairs - 1)
        self.slot_worth = np.take_along_axis(worst, next_out[:, None], axis=1)
        if len(best):
            self.copy_worth = float(gain[head[-1], place[-1]])
