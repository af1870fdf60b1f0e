"""Block-joint eviction: one set of whole blocks for all that a block table maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvreclaim.policies.base import Selector
from kvreclaim.policies.joint import JointPolicy, JointScores


@dataclass(frozen=True)
class BlockJoint(JointPolicy):
    """Evicts whole blocks, the same in all layers and heads of a block table: every one goes back at no copy.

    Blocks go in ascending order of their joint score. What is left of the evictions, fewer tokens than a
    block, takes the lowest tokens of the next block. In a table of one layer this is ChunkKV's decision (Liu
    et al., arXiv 2502.00299) on aligned chunks; in a shared table all layers and heads have to agree.
    Mean over heads and tokens is the choice for continuation, maximum over both for retrieval
    (docs/remedy.md).
    """

    name: ClassVar[str] = "block-joint"
    title: ClassVar[str] = "Block-joint"

    def _by_table(self, tables: JointScores, /) -> Selector:
        order = tables.block_order()
        return lambda budget: tables.spread(tables.keep_blocks(order, budget))
