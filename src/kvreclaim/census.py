"""Everything that the ledger counts of a mask, in one pass over it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvreclaim.histogram import Counts, Histogram, histogram, total
from kvreclaim.keep import KeepMask
from kvreclaim.layout.tables import BlockLayout
from kvreclaim.occupancy import Bits, count_blocks, slabs, table_bits


@dataclass(frozen=True, eq=False)
class Census:
    """Counts of a mask by block table.

    Parameters
    ----------
    live_tokens
        Histogram of the live tokens of each block after the OR, ``[tables, min(B, tokens) + 1]``.
    live_pairs
        Histogram of the live pairs of each block, summed over the layers and heads of its table.
    fullest_head
        Live pairs of each table's fullest head, ``[tables]``.
    heads
        (layer, head) pairs that each table maps, ``[tables]``.
    last_block_held
        Whether the last block of each table is held, bool ``[tables]``: it may be partial.
    """

    live_tokens: Histogram
    live_pairs: Histogram
    fullest_head: NDArray[np.int64]
    heads: NDArray[np.int64]
    last_block_held: NDArray[np.bool_]


def census(mask: KeepMask, layout: BlockLayout) -> Census:
    """Count a mask's live tokens, live pairs and fullest heads by block table."""
    per_head = np.zeros((mask.layers, mask.kv_heads), np.int64)
    heads = np.concatenate([np.full(part.shape[0], part.shape[1]) for part in layout.split(per_head)])
    top, most_heads = min(layout.block_size, mask.tokens), int(heads.max())
    live_tokens = np.zeros((len(heads), top + 1), np.int64)
    live_pairs = np.zeros((len(heads), top * most_heads + 1), np.int64)
    for bits, tokens in slabs(mask, layout):
        live = count_blocks(table_bits(bits, layout), tokens, layout.block_size)
        live_tokens += histogram(live, top)
        if most_heads > 1:
            by_block = _by_block(bits, tokens, layout.block_size)
            per_head += by_block.sum(axis=2, dtype=np.uint32)
            live_pairs += histogram(_pairs(by_block, layout), top * most_heads)
    alone = most_heads == 1  # where a table maps one head, its tokens are its pairs
    return Census(
        live_tokens=live_tokens,
        live_pairs=live_tokens if alone else live_pairs,
        fullest_head=total(live_tokens) if alone else _fullest(per_head, layout),
        heads=heads,
        last_block_held=live[:, -1] > 0,
    )


def _by_block(bits: Bits, tokens: int, block_size: int) -> Counts:
    """Count the live pairs of each head by block: ``[layers, kv_heads, blocks]``."""
    counts = count_blocks(bits.reshape(-1, bits.shape[-1]), tokens, block_size)
    return counts.reshape(*bits.shape[:2], -1)


def _pairs(by_block: Counts, layout: BlockLayout) -> Counts:
    """Sum live pairs over the heads of each table: ``[tables, blocks]``."""
    return np.concatenate([part.sum(axis=1, dtype=np.uint32) for part in layout.split(by_block)])


def _fullest(per_head: NDArray[np.int64], layout: BlockLayout) -> NDArray[np.int64]:
    return np.concatenate([part.max(axis=1) for part in layout.split(per_head)])
