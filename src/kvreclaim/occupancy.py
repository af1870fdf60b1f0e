"""Live tokens per block: the one hot kernel.

Masks are packed to bits (`numpy.packbits`), OR-ed over what shares a block table, and counted: by
`numpy.bitwise_count` on words as wide as a block where there are such words, else as differences of ranks
(live tokens before a position); a block of one token is its bit. Work goes by slabs of tokens that stay in
cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim.keep import KeepMask, as_keep_mask
from kvreclaim.layout.tables import BlockLayout, LayerGroup, check_layout

Bits = NDArray[np.uint8]
Counts = NDArray[np.unsignedinteger[Any]]

_WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_SLAB = 1 << 22  # KV pairs of a slab: 512 KiB of bits, inside a core's cache
_STRIP = 1 << 14  # words or blocks that the rank kernel holds at a time


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
        If the mask or the layout is not one, or the layout's groups do not fit the mask's layers.
    """
    mask = as_keep_mask(keep)
    tables = len(check_layout(layout).rows_of_tables(mask.layers, mask.kv_heads))
    counts = np.empty((tables, layout.blocks(mask.tokens)), np.min_scalar_type(layout.block_size))
    start = 0
    for bits, tokens in slabs(mask, layout):
        end = start + layout.blocks(tokens)
        counts[:, start:end] = count_blocks(table_bits(bits, layout), tokens, layout.block_size)
        start = end
    return counts


def live_tokens(mask: KeepMask, layout: BlockLayout) -> NDArray[np.bool_]:
    """Return the OR over what shares each table, as bool ``[tables, tokens]``."""
    return occupancy(mask, replace(layout, block_size=1)).view(np.bool_)


def slabs(mask: KeepMask, layout: BlockLayout) -> Iterator[tuple[Bits, int]]:
    """Yield the mask's bits ``[layers, kv_heads, bytes]`` by slabs of whole blocks, with their tokens."""
    groups = layout.groups_of(mask.layers)
    windowed = any(group.window for group in groups)
    whole = 64 * layout.block_size  # tokens, so that a slab ends on a block, and on a word of the rank kernel
    step = max(1, _SLAB // (mask.layers * mask.kv_heads) // whole) * whole
    for start in range(0, mask.tokens, step):
        slab = mask.array[:, :, start : start + step]
        if windowed:
            slab = _without_window(slab, groups, mask.tokens - start)
        bits = np.packbits(slab, axis=-1, bitorder="little")
        yield (
            np.ascontiguousarray(bits),
            slab.shape[2],
        )  # NumPy packs in the order of the mask, such as Fortran's


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
    tables = [
        part[:, 0] if part.shape[1] == 1 else np.bitwise_or.reduce(part, axis=1)
        for part in layout.split(bits)
    ]
    return tables[0] if len(tables) == 1 else np.concatenate(tables)


def count_blocks(bits: Bits, tokens: int, block_size: int) -> Counts:
    """Count set bits by block: ``[rows, bytes]`` to ``[rows, blocks]``."""
    if block_size == 1:
        return np.unpackbits(bits, axis=-1, count=tokens, bitorder="little")
    if block_size in _WORDS:
        return _count_words(bits, block_size)
    return _count_ranks(bits, tokens, min(block_size, tokens))  # a larger block holds no more


def _count_words(bits: Bits, block_size: int) -> Counts:
    missing = -bits.shape[1] % (block_size // 8)
    padded = np.pad(bits, ((0, 0), (0, missing))) if missing else bits
    if block_size == 16:  # NumPy counts words of 16 bits one by one, and those of other widths by vectors
        halves = np.bitwise_count(padded).view(np.uint16)
        return (halves + (halves >> 8)).astype(np.uint8)
    words: Counts = padded.view(_WORDS[block_size])
    return np.bitwise_count(words)


def _count_ranks(bits: Bits, tokens: int, block_size: int) -> Counts:
    """Count by differences of ranks, live tokens before a position, kept modulo the type of the counts.

    A span is as many blocks as fill whole words: 64, or a row of fewer. Rows are made of whole spans and
    strips of spans, so that every strip has its block bounds at the same bits of the same words.
    """
    blocks = -(-tokens // block_size)
    blocks_of_span = min(64, blocks)
    words_of_span = -(-blocks_of_span * block_size // 64)
    spans = -(-blocks // blocks_of_span)
    spans_of_strip = min(len(bits) * spans, max(1, _STRIP // max(words_of_span, blocks_of_span)))
    strips = -(-len(bits) * spans // spans_of_strip)
    words = np.zeros((strips, spans_of_strip * words_of_span), "<u8")
    rows = words.reshape(-1)[: len(bits) * spans * words_of_span].view(np.uint8).reshape(len(bits), -1)
    rows[:, : bits.shape[1]] = bits
    bounds = _bounds(spans_of_strip, words_of_span, blocks_of_span, block_size)
    word = bounds >> 6
    below = (np.uint64(1) << (bounds & 63).astype(np.uint64)) - np.uint64(1)
    counts = np.empty((strips, spans_of_strip * blocks_of_span), np.min_scalar_type(block_size))
    before = np.zeros(words.shape[1] + 1, counts.dtype)
    for strip, found in zip(words, counts, strict=True):
        np.cumsum(np.bitwise_count(strip), dtype=counts.dtype, out=before[1:])
        own_word = strip.take(word, mode="clip")  # the last bound is past the strip's words, and needs none
        rank = before.take(word) + np.bitwise_count(own_word & below)
        np.subtract(rank[1:], rank[:-1], out=found)
    by_row = counts.reshape(-1)[: len(bits) * spans * blocks_of_span].reshape(len(bits), -1)
    return by_row[:, :blocks]


def _bounds(spans: int, words_of_span: int, blocks_of_span: int, block_size: int) -> NDArray[np.int64]:
    """Return the first bit of each block of a strip, and the bit past its end."""
    first = np.arange(spans)[:, None] * (64 * words_of_span) + np.arange(blocks_of_span) * block_size
    return np.append(first, 64 * words_of_span * spans)
