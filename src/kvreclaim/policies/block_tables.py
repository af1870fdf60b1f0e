"""What the policies that evict whole blocks share: one decision for all that a block table maps."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.layout import BlockLayout
from kvreclaim.policies.base import Scores

Scalar = TypeVar("Scalar", bound=np.generic)


class TableScores:
    """Scores summed over the layers and heads that share a block table.

    A block is free only when it is dead in all of them, so they must drop the same tokens.

    Parameters
    ----------
    scores
        [layers, kv_heads, tokens].
    layout
        Blocks and block tables.
    policy
        Name of the policy, for the message.

    Attributes
    ----------
    scores
        [tables, tokens].
    block_size
        Tokens of a block.

    Raises
    ------
    InputError
        If there is no layout, or it does not fit the layers.
    """

    def __init__(self, scores: Scores, layout: BlockLayout | None, policy: str) -> None:
        if not isinstance(layout, BlockLayout):
            raise InputError(f"{policy} evicts whole blocks: pass layout=BlockLayout(block_size=...)")
        self.block_size = layout.block_size
        self.scores: NDArray[np.floating[Any]] = np.concatenate(
            [part.sum(axis=1, dtype=np.float64) for part in layout.split(scores)]
        )
        self._rows = layout.rows_of_tables(*scores.shape[:2])
        self._shape = scores.shape

    def block_sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Sum [tables, tokens] over the tokens of each block: [tables, blocks]."""
        starts = np.arange(0, values.shape[1], self.block_size)
        summed = np.intp if values.dtype == np.bool_ else np.float64
        return np.add.reduceat(values, starts, axis=1, dtype=summed)

    def by_token(self, per_block: NDArray[Scalar]) -> NDArray[Scalar]:
        """Repeat [tables, blocks] for the tokens of each block: [tables, tokens]."""
        tokens = self._shape[2]
        return np.repeat(per_block, min(self.block_size, tokens), axis=1)[:, :tokens]

    def spread(self, per_table: NDArray[Scalar]) -> NDArray[Scalar]:
        """Give what was decided by table, [tables, tokens], to its heads: [layers, kv_heads, tokens]."""
        layers, kv_heads, tokens = self._shape
        per_head = np.empty((layers * kv_heads, tokens), per_table.dtype)
        for rows, decided in zip(self._rows, per_table, strict=True):
            per_head[rows] = decided
        return per_head.reshape(self._shape)
