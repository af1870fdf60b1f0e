"""Packing: which blocks of a table stay, so that the fewest pairs move, and where the others' pairs go."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Bools = NDArray[np.bool_]


def fewest_moves(pairs: Indices, held: int, block_size: int) -> Indices:
    """Return the blocks that stay in a pack, so that the fewest pairs lie outside its slots.

    All but the last of them are whole, the last one holds the rest. Each block is tried as the last one, with
    the fullest of those before it: O(blocks log blocks). Of equal choices, the one that ends the latest, so
    that the newest tokens stay where they are; of equally full blocks, the first.

    Parameters
    ----------
    pairs
        ``[slots]``: the live pairs in each slot, over all that the table maps.
    held
        Slots that are used afterwards: what the fullest head keeps, at least 1.
    block_size
        Slots of a block.

    Returns
    -------
    int64 ``[blocks]``
        Ascending.
    """
    whole, rest = divmod(held - 1, block_size)
    rest += 1
    padded = np.zeros((-(-len(pairs) // block_size), block_size), np.int64)
    padded.reshape(-1)[: len(pairs)] = pairs
    live, in_rest = padded.sum(axis=1), padded[:, :rest].sum(axis=1)
    best: list[tuple[int, int]] = []  # of the blocks so far the fullest, the least of them first
    most, last, so_far = -1, 0, 0
    for block, inside in enumerate(live.tolist()):
        if len(best) == whole and so_far + int(in_rest[block]) >= most:
            most, last = so_far + int(in_rest[block]), block
        heappush(best, (inside, -block))
        so_far += inside
        if len(best) > whole:
            so_far -= heappop(best)[0]
    before = np.argsort(-live[:last], kind="stable")[:whole]
    return np.append(np.sort(before), last)


def packed_slots(keep: Bools, block_size: int) -> Indices:
    """Return the slot in which a pack of the fewest moves leaves each survivor; -1 for what is dead.

    Parameters
    ----------
    keep
        bool ``[rows, slots]`` of what one table maps; every row keeps as many, at least one.
    block_size
        Slots of a block.

    Returns
    -------
    int64 ``[rows, slots]``
        Survivors of blocks that stay keep their place in the block. In each row the others take the slots
        that are left, both in ascending order.
    """
    held = int(keep[0].sum())
    blocks = fewest_moves(keep.sum(axis=0, dtype=np.int64), held, block_size)
    slots = (blocks[:, None] * block_size + np.arange(block_size)).ravel()[:held]
    place = np.full(keep.shape[1] + block_size, -1)
    place[slots] = np.arange(held)
    packed = np.where(keep, place[: keep.shape[1]], -1)
    moving = keep & (packed < 0)
    taken = np.zeros((len(keep), held), np.bool_)
    row, slot = np.nonzero(packed >= 0)
    taken[row, packed[row, slot]] = True
    packed[moving] = np.nonzero(~taken)[1]
    return packed
