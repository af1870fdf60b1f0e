"""What the block-coherent policies share: the scores of all heads of a block table made one, and what stays.

    scores [layers, heads, tokens] ──over the tokens of a block──▶ [layers, heads, blocks]
        ──each head made comparable──▶ ──over the heads of a table──▶ [tables, blocks]

Heads differ in what their scores sum up to, so each is divided by its sum over what may be evicted, or
replaced by its ranks, before they are joined.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.layout import BlockLayout
from kvreclaim.policies.base import BoolArray, Policy, Scores, Selector, eviction_order, rank_of
from kvreclaim.validate import non_negative_int, positive_int

Values = NDArray[np.floating[Any]]

OVER_HEADS = ("mean", "max", "rank")
OVER_TOKENS = ("mean", "max", "top")


@dataclass(frozen=True)
class JointPolicy(Policy):
    """A policy that decides for all heads of a block table together.

    Parameters
    ----------
    heads
        How the heads of a table are joined: ``mean`` of their scores, each divided by its sum; ``max`` of the
        same, which keeps what a single head needs; ``rank``, the mean of their ranks.
    tokens
        How the tokens of a block are: ``mean``; ``max``; ``top``, the mean of the ``top`` highest.
    top
        Tokens that ``top`` looks at.
    sinks
        Tokens at the start that always stay, and with them their blocks.
    recent
        The same at the end.
    """

    heads: str = "mean"
    tokens: str = "mean"
    top: int = 2
    sinks: int = 4
    recent: int = 64

    def __post_init__(self) -> None:
        for field, value, allowed in (
            ("heads", self.heads, OVER_HEADS),
            ("tokens", self.tokens, OVER_TOKENS),
        ):
            if value not in allowed:
                raise InputError(f"{self.name} has {field}={value!r}: pass one of {', '.join(allowed)}")
        positive_int(self.top, "top")
        non_negative_int(self.sinks, "sinks")
        non_negative_int(self.recent, "recent")

    def _selector(self, scores: Scores, layout: BlockLayout | None, /) -> Selector:
        if not isinstance(layout, BlockLayout):
            raise InputError(f"{self.name} decides by block table: pass layout=BlockLayout(block_size=...)")
        tables = JointScores(self, scores, layout)
        select = self._by_table(tables)

        def keep(budget: int) -> BoolArray:
            tables.check(budget)
            return select(budget)

        return keep

    @abstractmethod
    def _by_table(self, tables: JointScores, /) -> Selector:
        """Return the function from a budget that what stays fits into to the mask."""


class JointScores:
    """Scores seen by block table.

    Parameters
    ----------
    policy
        Says how heads and tokens are joined, and what stays.
    scores
        ``[layers, kv_heads, tokens]``.
    layout
        Blocks and block tables.

    Attributes
    ----------
    scores
        ``[rows, tokens]``, row ``layer * kv_heads + head``.
    rows
        For each table the rows that it maps.
    tokens, blocks, block_size
        Tokens of the sequence; blocks of a table; tokens of a block.
    lengths
        ``[blocks]``: tokens of each, B but for a partial last one.
    stays
        bool ``[blocks]``: those that hold a sink or a recent token.
    totals
        float64 ``[rows]``: what a head's scores sum up to in the other blocks; 1 where that is 0.
    """

    def __init__(self, policy: JointPolicy, scores: Scores, layout: BlockLayout) -> None:
        self._policy = policy
        self.shape = scores.shape
        self.scores = scores.reshape(-1, scores.shape[-1])
        self.rows = layout.rows_of_tables(*scores.shape[:2])
        self.tokens, self.block_size = scores.shape[-1], layout.block_size
        self.blocks = layout.blocks(self.tokens)
        starts = np.arange(self.blocks) * self.block_size
        self.lengths = np.minimum(self.block_size, self.tokens - starts)
        self.stays = (starts < policy.sinks) | (starts + self.lengths > self.tokens - policy.recent)
        free = ~self.by_token(self.stays)
        sums = np.array([np.sum(row, where=free, dtype=np.float64) for row in self.scores])
        self.totals = np.where(sums > 0, sums, 1.0)

    def check(self, budget: int) -> None:
        """Raise InputError if a budget is below what always stays."""
        policy, least = self._policy, int(self.lengths[self.stays].sum())
        if budget < least:
            raise InputError(
                f"{policy.name} keeps {policy.sinks} sinks and {policy.recent} recent tokens, {least} in "
                f"whole blocks of {self.block_size}, and the budget is {budget}: pass a smaller block size, "
                "fewer sinks or recent tokens, or a larger budget"
            )

    def block_order(self) -> NDArray[np.intp]:
        """Return the blocks of each table, the first to go first and those that stay last."""
        joint = self._joined(self._block_values(), self.stays)
        return _last(self.stays, joint)

    def token_order(self) -> NDArray[np.intp]:
        """Return the tokens of each table, the first to go first and those that stay last."""
        stays = self.by_token(self.stays)
        return _last(stays, self._joined(self.scores, stays))

    def by_token(self, per_block: NDArray[Any]) -> NDArray[Any]:
        """Repeat ``[..., blocks]`` for the tokens of each block: ``[..., tokens]``."""
        return np.repeat(per_block, self.block_size, axis=-1)[..., : self.tokens]

    def keep_blocks(self, order: NDArray[np.intp], budget: int) -> BoolArray:
        """Evict blocks in an order, ``[tables, blocks]``, down to a budget: bool ``[tables, tokens]``.

        What is left of the evictions, fewer tokens than a block, takes the lowest tokens of the next block.
        They free none wherever they lie; there they open the block that goes next, so that evictions at
        rising ratios are nested.
        """
        leaves = np.cumsum(self.lengths[order], axis=1) <= self.tokens - budget
        kept = np.empty(order.shape, np.bool_)
        np.put_along_axis(kept, order, ~leaves, axis=1)
        live, surplus = self.by_token(kept), kept @ self.lengths - budget
        if surplus.any():
            joint = self._joined(self.scores, self.by_token(self.stays))
            for row, scores, places, count in zip(live, joint, order, surplus, strict=True):
                start = next(block for block in places * self.block_size if row[block])
                tokens = scores[start : start + self.block_size]
                row[start + eviction_order(tokens)[:count]] = False
        return live

    def spread(self, per_table: BoolArray) -> BoolArray:
        """Give what was decided by table, ``[tables, tokens]``, to its heads: ``[layers, heads, tokens]``."""
        per_head = np.empty(self.scores.shape, np.bool_)
        for rows, decided in zip(self.rows, per_table, strict=True):
            per_head[rows] = decided
        return per_head.reshape(self.shape)

    def _joined(self, values: Values, stays: BoolArray) -> NDArray[np.float64]:
        """Join ``[rows, n]`` by table: ``[tables, n]``. Row by row, for all together may be gigabytes."""
        combine: Callable[..., Any] = np.maximum if self._policy.heads == "max" else np.add
        joined = np.zeros((len(self.rows), values.shape[1]))
        for table, rows in zip(joined, self.rows, strict=True):
            for row in rows:
                if self._policy.heads == "rank":
                    comparable: NDArray[Any] = rank_of(_last(stays, values[row]))
                else:
                    comparable = values[row] / self.totals[row]
                combine(table, comparable, out=table)
        return joined

    def _block_values(self) -> Values:
        """Join the tokens of each block: ``[rows, blocks]``."""
        starts = np.arange(self.blocks) * self.block_size
        if self._policy.tokens == "mean":
            sums: Values = np.add.reduceat(self.scores, starts, axis=1, dtype=np.float64)
            means: Values = sums / self.lengths
            return means
        if self._policy.tokens == "max":
            highest: Values = np.maximum.reduceat(self.scores, starts, axis=1)
            return highest
        top = min(self._policy.top, self.block_size)
        padded = np.full((len(self.scores), self.blocks * self.block_size), -np.inf, self.scores.dtype)
        padded[:, : self.tokens] = self.scores
        best = np.partition(padded.reshape(*padded.shape[:1], self.blocks, -1), -top, axis=-1)[..., -top:]
        there = np.isfinite(best)  # a partial last block may have fewer
        top_means: Values = np.sum(best, axis=-1, where=there, dtype=np.float64) / there.sum(axis=-1)
        return top_means


def whole_budget(budget: int, slots: int, block_size: int) -> int:
    """Return the slots that a policy leaves in a row of so many, if it fills the blocks it keeps.

    At most the budget: the last block stays with what it holds, for the next token goes there; the rest of
    the budget pays for whole blocks before it.
    """
    last = slots - (slots - 1) // block_size * block_size
    return min(slots, last + (budget - last) // block_size * block_size)


def _last(stays: BoolArray, values: Values) -> NDArray[np.intp]:
    """Return the order of eviction along the last axis, what stays at its end."""
    return eviction_order(np.where(stays, np.inf, values))
