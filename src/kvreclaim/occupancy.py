"""Live tokens per block: the one hot kernel.

Masks are packed to bits (`numpy.packbits`), OR-ed over what shares a block table, and counted: by
`numpy.bitwise_count` on words as wide as a block where there are such words, else as differences of ranks
(live tokens before a position). Work goes by slabs of tokens that stay in cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim.keep import KeepMask, as_keep_mask
from kvreclaim.layout.tables import BlockLayout, LayerGroup

Bits = NDArray[np.uint8]
Counts = NDArray[np.unsignedinteger[Any]]

_WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_SLAB = 1 << 22  # KV pairs of a slab: 512 KiB of bits, inside a core's cache
_STRIP = 1 << 15  # words or blocks that the rank kernel holds at a time


def occupancy(keep: KeepMask | ArrayLike, layout: BlockLayout) -> Counts:
    """Count the live tokens of each block.

    A token is live in a table if any of the layers and heads that the table maps keeps it; tokens outside a
    layer group's window are dead in its layers.

    Parameters
    ----------
    keep
        A `KeepMask`, or an array of rank 1 to 3.
    layout
        Block size, kind of block table and layer groups.

    Returns
    -------
    unsigned integers ``[tables, blocks]``, of the narrowest type that holds ``block_size``
        Live tokens of each block, 0 to ``block_size``; the last block may be partial.

    Raises
    ------
    InputError
        If the mask is not one, or the layout's groups do not fit its layers.
    """
    mask = as_keep_mask(keep)
    counts = [
        count_blocks(table_bits(bits, layout), tokens, layout.block_size)
        for bits, tokens in slabs(mask, layout)
    ]
    return np.concatenate(counts, axis=1)


def live_tokens(mask: KeepMask, layout: BlockLayout) -> NDArray[np.bool_]:
    """Return the OR over what shares each table, as bool ``[tables, tokens]``."""
    live = [
        np.unpackbits(table_bits(bits, layout), axis=-1, count=tokens, bitorder="little")
        for bits, tokens in slabs(mask, layout)
    ]
    return np.concatenate(live, axis=1).view(np.bool_)


def slabs(mask: KeepMask, layout: BlockLayout) -> Iterator[tuple[Bits, int]]:
    """Yield the mask's bits ``[layers, kv_heads, bytes]`` by slabs of whole blocks, with their tokens."""
    groups = layout.groups_of(mask.layers)
    windowed = any(group.window for group in groups)
    whole = 64 * layout.block_size  # so that a slab ends on a block, and on a word of the rank kernel
    step = max(1, _SLAB // (mask.layers * mask.kv_heads) // whole) * whole
    for start in range(0, mask.tokens, step):
        slab = mask.array[:, :, start : start + step]
        if windowed:
            slab = _without_window(slab, groups, mask.tokens - start)
        yield np.packbits(slab, axis=-1, bitorder="little"), slab.shape[2]


def _without_window(
    slab: NDArray[np.bool_], groups: tuple[LayerGroup, ...], to_end: int
) -> NDArray[np.bool_]:
    """Return a copy where tokens before each group's window are dead, ``to_end`` tokens before the end."""
    live = slab.copy()
    for group in groups:
        if group.window is not None:
            live[list(group.layers), :, : max(0, to_end - group.window)] = False
    return live


def table_bits(bits: Bits, layout: BlockLayout) -> Bits:
    """OR over what shares each table: ``[layers, kv_heads, bytes]`` to ``[tables, bytes]``."""
    parts = layout.split(bits)
    return np.concatenate(
        [part[:, 0] if part.shape[1] == 1 else np.bitwise_or.reduce(part, axis=1) for part in parts]
    )


def count_blocks(bits: Bits, tokens: int, block_size: int) -> Counts:
    """Count set bits by block: ``[rows, bytes]`` to ``[rows, blocks]``."""
    return _count_words(bits, block_size) if block_size in _WORDS else _count_ranks(bits, tokens, block_size)


def _count_words(bits: Bits, block_size: int) -> Counts:
    missing = -bits.shape[1] % (block_size // 8)
    padded = np.pad(bits, ((0, 0), (0, missing))) if missing else bits
    return np.bitwise_count(padded.view(_WORDS[block_size]))


def _count_ranks(bits: Bits, tokens: int, block_size: int) -> Counts:
    """Count by differences of ranks; 64 blocks fill ``block_size`` whole words, so their bounds repeat."""
    blocks = -(-tokens // block_size)
    spans = -(-blocks // 64)
    padded = np.zeros((len(bits), spans * block_size * 8), np.uint8)
    padded[:, : bits.shape[1]] = bits
    words = padded.view("<u8").reshape(-1, block_size)
    bounds = np.arange(64) * block_size
    word = bounds >> 6
    below = (np.uint64(1) << (bounds & 63).astype(np.uint64)) - np.uint64(1)
    counts = np.empty((len(words), 64), np.min_scalar_type(block_size))
    step = max(1, _STRIP // max(block_size, 64))
    for start in range(0, len(words), step):
        strip = words[start : start + step]
        before = np.zeros((len(strip), block_size + 1), np.uint64)
        np.cumsum(np.bitwise_count(strip), axis=1, dtype=np.uint64, out=before[:, 1:])
        rank = before[:, word] + np.bitwise_count(strip[:, word] & below)
        counts[start : start + step, :-1] = rank[:, 1:] - rank[:, :-1]
        counts[start : start + step, -1] = before[:, -1] - rank[:, -1]
    return counts.reshape(len(bits), -1)[:, :blocks]
