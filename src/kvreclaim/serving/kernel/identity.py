"""Blocks as individuals, for what depends on which block is whose: shared prefixes, and pages.

A free block keeps its hash until it is taken again. Free blocks queue as in vLLM (first freed first taken, a
request's last block first), or, where they lie in pages, as in kvcached: a block of the partly used page that
got one back last, else of the first page that is not mapped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kvreclaim.serving.kernel.state import HIT_TOKENS, Ints

# Places in Blocks.cursor.
FREE_ROWS, PAGES, PEAK_PAGES, PARTIAL = range(4)
_NONE = -1


class Blocks(NamedTuple):
    """Tables of the running requests, owners and hashes of blocks, and the order of the free ones.

    The queue is a ring through `after` and `before`, closed by a place past the last block. `partial` is a
    stack of pages that were partly used when they were put there; `in_page` counts a page's used blocks,
    and `spare` heads its stack of free ones (linked through `after`).
    """

    cursor: NDArray[np.int64]
    table: NDArray[np.int32]
    rows: Ints
    row: Ints
    owners: Ints
    after: Ints
    before: Ints
    key: Ints
    holder: Ints
    keys_of: NDArray[np.int64]
    hashes: Ints
    keys_per_hash: int
    per_page: int
    first: int
    in_page: Ints
    spare: Ints
    partial: Ints
    stacked: NDArray[np.uint8]


def new_blocks(
    count: int,
    places: int,
    width: int,
    requests: int,
    *,
    hashes: tuple[NDArray[np.int64], Ints, int] | None = None,
    per_page: int = 0,
    null_blocks: int = 0,
) -> Blocks:
    """Return all blocks free.

    Parameters
    ----------
    count
        Usable blocks.
    places, width
        Most requests that run at once, and most blocks of one.
    requests
        Requests of the trace.
    hashes
        For shared prefixes: offsets ``[requests + 1]`` into hashes, and the blocks that each hash stands for.
    per_page
        Blocks of a page; 0: no pages.
    null_blocks
        Blocks at the start of the first page that are never used, and keep it mapped.
    """
    offsets, ids, keys_per_hash = hashes or (np.zeros(requests + 1, np.int64), np.empty(0, np.int32), 1)
    distinct = (int(ids.max()) + 1) * keys_per_hash if ids.size else 0
    after = np.arange(1, count + 2, dtype=np.int32)
    before = np.arange(-1, count, dtype=np.int32)
    after[count], before[0] = 0, count
    pages = -(-(count + null_blocks) // per_page) if per_page else 0
    blocks = Blocks(
        cursor=np.zeros(4, np.int64),
        table=np.empty((places, width), np.int32),
        rows=np.arange(places, dtype=np.int32),
        row=np.full(requests, _NONE, np.int32),
        owners=np.zeros(count, np.int32),
        after=after,
        before=before,
        key=np.full(count, _NONE, np.int32),
        holder=np.full(distinct, _NONE, np.int32),
        keys_of=offsets,
        hashes=ids,
        keys_per_hash=keys_per_hash,
        per_page=per_page,
        first=null_blocks,
        in_page=np.zeros(pages, np.int32),
        spare=np.full(pages, _NONE, np.int32),
        partial=np.empty(pages + 1, np.int32),
        stacked=np.zeros(pages, np.uint8),
    )
    blocks.cursor[FREE_ROWS] = places
    if per_page:
        _lay_out(blocks, count, null_blocks)
    return blocks


def _lay_out(blocks: Blocks, count: int, null_blocks: int) -> None:
    """Put each block on its page's stack; null blocks count as used ones of the first page."""
    for block in range(count - 1, -1, -1):
        page = (block + null_blocks) // blocks.per_page
        blocks.after[block] = blocks.spare[page]
        blocks.spare[page] = block
    if null_blocks:
        blocks.in_page[0] = null_blocks
        blocks.cursor[PAGES] = blocks.cursor[PEAK_PAGES] = 1
        if null_blocks < blocks.per_page:
            blocks.partial[0] = 0
            blocks.stacked[0] = 1
            blocks.cursor[PARTIAL] = 1


@njit(cache=True, nogil=True)
def open_row(blocks, request):
    """Give a request that begins to run a row of the table."""
    blocks.cursor[FREE_ROWS] -= 1
    blocks.row[request] = blocks.rows[blocks.cursor[FREE_ROWS]]


@njit(cache=True, nogil=True)
def close_row(blocks, request):
    """Take the row back."""
    blocks.rows[blocks.cursor[FREE_ROWS]] = blocks.row[request]
    blocks.cursor[FREE_ROWS] += 1
    blocks.row[request] = _NONE


@njit(cache=True, nogil=True)
def take(blocks, request, start, end):
    """Put free blocks, which must be there, at these places of a request's table."""
    row = blocks.table[blocks.row[request]]
    for place in range(start, end):
        block = _from_page(blocks) if blocks.per_page > 0 else _from_queue(blocks)
        blocks.owners[block] = 1
        row[place] = block


@njit(cache=True, nogil=True)
def give(blocks, request, start, end):
    """Let go of these places of a request's table, the last first; return how many blocks that freed."""
    row = blocks.table[blocks.row[request]]
    freed = 0
    for place in range(end - 1, start - 1, -1):
        block = row[place]
        blocks.owners[block] -= 1
        if blocks.owners[block] == 0:
            freed += 1
            if blocks.per_page > 0:
                _to_page(blocks, block)
            else:
                _to_queue(blocks, block)
    return freed


@njit(cache=True, nogil=True)
def cached(blocks, request, most):
    """Return how many leading blocks of a request are in the pool already, and how many of them are free."""
    hits = free = 0
    while hits < most:
        block = blocks.holder[_key(blocks, request, hits)]
        if block == _NONE:
            break
        free += blocks.owners[block] == 0
        hits += 1
    return hits, free


@njit(cache=True, nogil=True)
def share(blocks, state, request, hits, block_size):
    """Put a request's leading cached blocks into its table."""
    row = blocks.table[blocks.row[request]]
    for place in range(hits):
        block = blocks.holder[_key(blocks, request, place)]
        if blocks.owners[block] == 0:
            blocks.after[blocks.before[block]] = blocks.after[block]
            blocks.before[blocks.after[block]] = blocks.before[block]
        blocks.owners[block] += 1
        row[place] = block
    state.counts[HIT_TOKENS] += hits * block_size


@njit(cache=True, nogil=True)
def hashed(blocks, request, prompt, block_size):
    """Return how many leading blocks of a request have a hash: whole ones of its prompt."""
    count = blocks.keys_of[request + 1] - blocks.keys_of[request]
    return min(prompt // block_size, count * blocks.keys_per_hash)


@njit(cache=True, nogil=True)
def remember(blocks, request, start, end):
    """Let the blocks at these places be found by their hashes, where no other block is."""
    row = blocks.table[blocks.row[request]]
    for place in range(start, end):
        key = _key(blocks, request, place)
        if blocks.holder[key] == _NONE:
            blocks.holder[key] = row[place]
            blocks.key[row[place]] = key


@njit(cache=True, nogil=True)
def shared(blocks, request, held):
    """Return how many leading blocks of a request others hold too."""
    row = blocks.table[blocks.row[request]]
    count = 0
    while count < held and blocks.owners[row[count]] > 1:
        count += 1
    return count


@njit(cache=True, nogil=True)
def forget(blocks, request, start, end):
    """Let the blocks at these places be found no more: an eviction changed what they hold."""
    row = blocks.table[blocks.row[request]]
    for place in range(start, end):
        _unkey(blocks, row[place])


@njit(cache=True, nogil=True)
def _key(blocks, request, place):
    at = blocks.keys_of[request] + place // blocks.keys_per_hash
    return blocks.hashes[at] * blocks.keys_per_hash + place % blocks.keys_per_hash


@njit(cache=True, nogil=True)
def _unkey(blocks, block):
    if blocks.key[block] != _NONE:
        blocks.holder[blocks.key[block]] = _NONE
        blocks.key[block] = _NONE


@njit(cache=True, nogil=True)
def _from_queue(blocks):
    closing = blocks.owners.size
    block = blocks.after[closing]
    blocks.after[closing] = blocks.after[block]
    blocks.before[blocks.after[block]] = closing
    _unkey(blocks, block)
    return block


@njit(cache=True, nogil=True)
def _to_queue(blocks, block):
    closing = blocks.owners.size
    last = blocks.before[closing]
    blocks.after[last] = block
    blocks.before[block] = last
    blocks.after[block] = closing
    blocks.before[closing] = block


@njit(cache=True, nogil=True)
def _from_page(blocks):
    cursor = blocks.cursor
    page = _NONE
    while cursor[PARTIAL] > 0 and page == _NONE:  # pages of the stack may have filled up or been given back
        top = blocks.partial[cursor[PARTIAL] - 1]
        if blocks.in_page[top] > 0 and blocks.spare[top] != _NONE:
            page = top
        else:
            cursor[PARTIAL] -= 1
            blocks.stacked[top] = 0
    if page == _NONE:
        page = 0
        while blocks.in_page[page] > 0 or blocks.spare[page] == _NONE:
            page += 1
        cursor[PAGES] += 1
        cursor[PEAK_PAGES] = max(cursor[PEAK_PAGES], cursor[PAGES])
        _stack(blocks, page)
    block = blocks.spare[page]
    blocks.spare[page] = blocks.after[block]
    blocks.in_page[page] += 1
    return block


@njit(cache=True, nogil=True)
def _to_page(blocks, block):
    cursor = blocks.cursor
    page = (block + blocks.first) // blocks.per_page
    blocks.after[block] = blocks.spare[page]
    blocks.spare[page] = block
    blocks.in_page[page] -= 1
    if blocks.in_page[page] == 0:
        cursor[PAGES] -= 1
    elif blocks.stacked[page] == 0:
        _stack(blocks, page)


@njit(cache=True, nogil=True)
def _stack(blocks, page):
    blocks.partial[blocks.cursor[PARTIAL]] = page
    blocks.stacked[page] = 1
    blocks.cursor[PARTIAL] += 1
