"""Blend: some of the kept blocks stay in place for all heads, the others are packed by each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvreclaim.policies.base import BoolArray, Selector, lowest
from kvreclaim.policies.joint import JointPolicy, JointScores
from kvreclaim.validate import fraction


@dataclass(frozen=True)
class Blend(JointPolicy):
    """Keeps a share of its blocks in place and lets each head fill the others with its own best tokens.

    Of the whole blocks that the budget pays for, a share ``beta`` is packed: each head copies the best of its
    tokens outside the blocks in place into them. The others are the best blocks for all heads together
    (`BlockJoint`). A shared table then frees all that the budget saves, at the price of these copies: about
    beta × budget × the share of tokens that don't already lie in the blocks they are packed into.

    Parameters
    ----------
    beta
        Share of the kept blocks that are packed, in [0, 1]: 0 is block-joint, 1 packs each head's own choice.
    """

    name: ClassVar[str] = "blend"
    title: ClassVar[str] = "Blend"
    beta: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(self.beta, "beta")

    def _by_table(self, tables: JointScores, /) -> Selector:
        order = tables.block_order()
        always = int(tables.lengths[tables.stays].sum())

        def keep(budget: int) -> BoolArray:
            packed = round(self.beta * (budget // tables.block_size)) * tables.block_size
            in_place = max(budget - packed, always)
            live = tables.spread(tables.keep_blocks(order, in_place))
            return _packed(tables, live, budget - in_place)

        return keep


def _packed(tables: JointScores, live: BoolArray, count: int) -> BoolArray:
    """Add to each head's row the ``count`` best of its other tokens; of equals, the later."""
    for row, scores in zip(live.reshape(tables.scores.shape), tables.scores, strict=True):
        others = np.flatnonzero(~row)
        row[others[~lowest(scores[others], len(others) - count)]] = True
    return live
