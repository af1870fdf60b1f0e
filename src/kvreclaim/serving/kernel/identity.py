"""Blocks as individuals, for what depends on which block is whose: shared prefixes, and pages.

A free block keeps its hash until it is taken again. Free blocks queue as in vLLM (first freed first taken, a
request's last block first), or, where they lie in pages, as in kvcached: a block of the partly used page that
got one back last, else of the first page that is not mapped.
"""

from __future__ import annotations

from numba import njit

from kvreclaim.serving.kernel.blocks import FREE_ROWS, NONE, PAGES, PARTIAL, PEAK_PAGES
from kvreclaim.serving.kernel.state import HIT_TOKENS
from kvreclaim.serving.kernel.steps import blocks_for
from kvreclaim.serving.kernel.windows import passed


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
    blocks.row[request] = NONE


@njit(cache=True, nogil=True)
def take(blocks, request, start, end):
    """Put free blocks, which must be there, at these places of each table of a request without a window."""
    for table in range(blocks.full):
        _take(blocks, blocks.table[table, blocks.row[request]], start, end)


@njit(cache=True, nogil=True)
def _take(blocks, row, start, end):
    for place in range(start, end):
        block = _from_page(blocks) if blocks.per_page > 0 else _from_queue(blocks)
        blocks.owners[block] = 1
        row[place] = block


@njit(cache=True, nogil=True)
def give(blocks, request, start, end):
    """Let go of these places of those tables, the last first; return how many blocks that freed."""
    freed = 0
    for table in range(blocks.full):
        freed += _give(blocks, blocks.table[table, blocks.row[request]], start, end)
    return freed


@njit(cache=True, nogil=True)
def slide(blocks, groups, request, computed, tokens, block_size):
    """Move the windows of a request on: blocks that they have passed go, those of the next tokens come."""
    row = blocks.row[request]
    for place in range(groups.windows.size):
        table, span = blocks.table[blocks.full + place, row], blocks.spans[place, row]
        first = passed(groups.windows[place], computed, block_size)
        _give(blocks, table, span[0], first)
        span[0] = first
    for place in range(groups.windows.size):
        table, span = blocks.table[blocks.full + place, row], blocks.spans[place, row]
        end = blocks_for(computed + tokens, block_size)
        _take(blocks, table, span[1], end)
        span[1] = end


@njit(cache=True, nogil=True)
def leave(blocks, groups, request):
    """Let go of what lies in a request's windows; return how many blocks that freed."""
    row, freed = blocks.row[request], 0
    for place in range(groups.windows.size):
        span = blocks.spans[place, row]
        freed += _give(blocks, blocks.table[blocks.full + place, row], span[0], span[1])
        span[:] = 0
    return freed


@njit(cache=True, nogil=True)
def _give(blocks, row, start, end):
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
        if block == NONE:
            break
        free += blocks.owners[block] == 0
        hits += 1
    return hits, free


@njit(cache=True, nogil=True)
def share(blocks, state, request, hits, block_size):
    """Put a request's leading cached blocks into its table."""
    row = blocks.table[0, blocks.row[request]]
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
    row = blocks.table[0, blocks.row[request]]
    for place in range(start, end):
        key = _key(blocks, request, place)
        if blocks.holder[key] == NONE:
            blocks.holder[key] = row[place]
            blocks.key[row[place]] = key


@njit(cache=True, nogil=True)
def shared(blocks, request, held):
    """Return how many leading blocks of a request others hold too."""
    row = blocks.table[0, blocks.row[request]]
    count = 0
    while count < held and blocks.owners[row[count]] > 1:
        count += 1
    return count


@njit(cache=True, nogil=True)
def forget(blocks, request, start, end):
    """Let the blocks at these places be found no more: an eviction changed what they hold."""
    row = blocks.table[0, blocks.row[request]]
    for place in range(start, end):
        _unkey(blocks, row[place])


@njit(cache=True, nogil=True)
def _key(blocks, request, place):
    at = blocks.keys_of[request] + place // blocks.keys_per_hash
    return blocks.hashes[at] * blocks.keys_per_hash + place % blocks.keys_per_hash


@njit(cache=True, nogil=True)
def _unkey(blocks, block):
    if blocks.key[block] != NONE:
        blocks.holder[blocks.key[block]] = NONE
        blocks.key[block] = NONE


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
    page = NONE
    while cursor[PARTIAL] > 0 and page == NONE:  # pages of the stack may have filled up or been given back
        top = blocks.partial[cursor[PARTIAL] - 1]
        if blocks.in_page[top] > 0 and blocks.spare[top] != NONE:
            page = top
        else:
            cursor[PARTIAL] -= 1
            blocks.stacked[top] = 0
    if page == NONE:
        page = 0
        while blocks.in_page[page] > 0 or blocks.spare[page] == NONE:
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
