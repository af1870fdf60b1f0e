"""Token-joint eviction: one set of tokens for all that a block table maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvreclaim.policies.base import BoolArray, Selector
from kvreclaim.policies.joint import JointPolicy, JointScores


@dataclass(frozen=True)
class TokenJoint(JointPolicy):
    """Evicts the tokens with the lowest joint scores, the same in all layers and heads of a block table.

    The heads' union is then no more than the budget, so whole tokens can be compacted; without copies few
    blocks are free. ``tokens`` and ``top`` say nothing here.
    """

    name: ClassVar[str] = "token-joint"
    title: ClassVar[str] = "Token-joint"

    def _by_table(self, tables: JointScores, /) -> Selector:
        order = tables.token_order()

        def keep(budget: int) -> BoolArray:
            live = np.ones(order.shape, np.bool_)
            np.put_along_axis(live, order[:, : tables.tokens - budget], False, axis=1)
            return tables.spread(live)

        return keep
