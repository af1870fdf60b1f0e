"""What is kept of blocks as individuals (see `kernel.identity`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim.serving.kernel.state import Ints

# Places in Blocks.cursor.
FREE_ROWS, PAGES, PEAK_PAGES, PARTIAL = range(4)
NONE = -1


class Blocks(NamedTuple):
    """Tables of the running requests, owners and hashes of blocks, and the order of the free ones.

    `table` is ``[groups, rows, blocks]``, groups that see all tokens (`full` of them) first; `spans`
    ``[others, rows, 2]`` says from where to where the blocks of a window lie. The queue is a ring through
    `after` and `before`, closed by a place past the last block. `partial` is a stack of pages that were
    partly used when they were put there; `in_page` counts a page's used blocks, and `spare` heads its stack
    of free ones (linked through `after`).
    """

    cursor: NDArray[np.int64]
    full: int
    table: NDArray[np.int32]
    spans: NDArray[np.int32]
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
    full: int = 1,
    windowed: int = 0,
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
    full, windowed
        Groups of layers that see all tokens, and those that see a window.
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
        full=full,
        table=np.empty((full + windowed, places, width), np.int32),
        spans=np.zeros((windowed, places, 2), np.int32),
        rows=np.arange(places, dtype=np.int32),
        row=np.full(requests, NONE, np.int32),
        owners=np.zeros(count, np.int32),
        after=after,
        before=before,
        key=np.full(count, NONE, np.int32),
        holder=np.full(distinct, NONE, np.int32),
        keys_of=offsets,
        hashes=ids,
        keys_per_hash=keys_per_hash,
        per_page=per_page,
        first=null_blocks,
        in_page=np.zeros(pages, np.int32),
        spare=np.full(pages, NONE, np.int32),
        partial=np.empty(pages + 1, np.int32),
        stacked=np.zeros(pages, np.uint8),
    )
    blocks.cursor[FREE_ROWS] = places
    if per_page:
        _lay_out(blocks, count, null_blocks)
    return blocks


def renumbered(blocks: Blocks, live: NDArray[np.int32], more: int) -> Blocks:
    """Return the blocks with these requests first, and so many new ones after them; none may have hashes."""
    row = np.concatenate([blocks.row[live], np.full(more, NONE, np.int32)])
    return blocks._replace(row=row, keys_of=np.zeros(row.size + 1, np.int64))


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
