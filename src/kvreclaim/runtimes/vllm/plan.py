"""What an eviction does to a request's row of blocks: which blocks stay, and which pairs move where.

    row, B = 4     block 0 |# . . #|  block 1 |. # . .|  block 2 |# # # .|      # live  . dead
    free           blocks 0, 1, 2 stay: none of them is dead in every layer and head
    pack           blocks 0, 2 stay; the pair of block 1 moves into a dead slot of block 0

A slot is a place in the row, counted over its blocks. Layers and heads share the row: a block leaves it for
all of them, while each moves its own survivors. Slots that are neither source nor destination stay untouched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim.compaction import cheapest_sources, fewest_moves

Bools = NDArray[np.bool_]
Indices = NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False)
class RowPlan:
    """The row after an eviction.

    Attributes
    ----------
    blocks
        int64 ``[kept]``: places in the row of the blocks that stay, ascending.
    slots
        int64 ``[held]``: the old slot behind each slot of the new row.
    head, source, destination
        int64 ``[moves]``: in layer and head ``head`` (layer * kv_heads + KV head), the pair in the old slot
        ``source`` moves to the old slot ``destination``; sorted by head.
    live
        bool ``[layers, kv_heads, held]`` of the new row.
    block_size
        Tokens of a block.
    """

    blocks: Indices
    slots: Indices
    head: Indices
    source: Indices
    destination: Indices
    live: Bools
    block_size: int

    @property
    def held(self) -> int:
        """Slots of the new row, which are filled in at least one layer and head or lie before such ones."""
        return len(self.slots)

    @property
    def moves(self) -> int:
        """Pairs that move."""
        return len(self.head)

    @property
    def runs(self) -> int:
        """Stretches of moves from consecutive slots of one block to consecutive slots of one block."""
        if not self.moves:
            return 0
        steps = (np.diff(place) for place in (self.head, self.source, self.destination))
        same_head, next_source, next_destination = steps
        goes_on = (same_head == 0) & (next_source == 1) & (next_destination == 1)
        for place in (self.source, self.destination):
            goes_on &= place[1:] // self.block_size == place[:-1] // self.block_size
        return 1 + int(np.count_nonzero(~goes_on))

    def carry(self, values: NDArray[Scalar], empty: Any) -> NDArray[Scalar]:
        """Return what was kept per old slot, ``[layers, kv_heads, old slots]``, per slot of the new row.

        ``empty`` stands where the new row has a slot that no layer and head had filled.
        """
        layers, heads, filled = values.shape
        padded = np.full((layers * heads, max(filled, int(self.slots.max()) + 1)), empty, values.dtype)
        padded[:, :filled] = values.reshape(layers * heads, filled)
        padded[self.head, self.destination] = padded[self.head, self.source]
        return padded[:, self.slots].reshape(layers, heads, self.held)


def plan_row(keep: Bools, block_size: int, mode: str, copy_budget: int | None = None) -> RowPlan:
    """Plan what becomes of a row.

    Parameters
    ----------
    keep
        bool ``[layers, kv_heads, slots]`` over the row's filled slots: which pairs are live; at least one of
        each head.
    block_size
        Tokens of a block; all blocks but the last are filled.
    mode
        ``mask``: everything stays where it is. ``free``: blocks that are dead in every layer and head leave,
        and so in ``compact``, where others follow (`kvreclaim.runtimes.vllm.compacting`).
        ``pack``: as many blocks stay as the fullest head needs, filled up to its last pair, those that take
        the fewest moves over all layers and heads, and each head moves into them what it has elsewhere.
    copy_budget
        ``pack`` only, heads that keep as many: the most pairs that may move. Where a whole pack takes more,
        dead blocks leave and then, while the budget lasts, those with the fewest live pairs
        (`kvreclaim.compaction.cheapest_sources`), whose pairs move into slots of the others; the dead slots
        that are left stay in the row.
    """
    filled = keep.shape[-1]
    blocks = -(-filled // block_size)
    if mode == "mask":
        return _arrange(keep, np.arange(blocks), filled, block_size)
    pairs = keep.sum(axis=(0, 1), dtype=np.int64)
    live = np.add.reduceat(pairs, np.arange(0, filled, block_size))
    if mode in ("free", "compact"):
        staying = np.flatnonzero(live)
        return _arrange(keep, staying, _filled(staying, filled, block_size), block_size)
    fullest = int(keep.sum(axis=-1).max())
    packed = _arrange(keep, fewest_moves(pairs, fullest, block_size), fullest, block_size)
    if copy_budget is None or packed.moves <= copy_budget:
        return packed
    heads = keep.shape[0] * keep.shape[1]
    (emptied,) = cheapest_sources(live[None], heads * block_size, copy_budget)
    staying = np.flatnonzero((live > 0) & ~emptied)
    return _arrange(keep, staying, max(fullest, _filled(staying, filled, block_size)), block_size)


def _filled(staying: Indices, filled: int, block_size: int) -> int:
    """Return the filled slots of some blocks of a row."""
    return int(np.minimum(filled - staying * block_size, block_size).sum())


def _arrange(keep: Bools, blocks: Indices, held: int, block_size: int) -> RowPlan:
    """Plan a row of some blocks, of which the first ``held`` slots are used, and who moves into them."""
    layers, heads, filled = keep.shape
    slots = (blocks[:, None] * block_size + np.arange(block_size)).ravel()[:held]
    survivors = np.zeros((layers * heads, max(filled, int(slots.max()) + 1)), np.bool_)
    survivors[:, :filled] = keep.reshape(layers * heads, filled)
    elsewhere = survivors.copy()
    elsewhere[:, slots] = False
    head, source = np.nonzero(elsewhere)
    holes = ~survivors[:, slots]
    wanted = np.count_nonzero(elsewhere, axis=1)
    taken = holes & (np.cumsum(holes, axis=1) <= wanted[:, None])
    destination = slots[np.nonzero(taken)[1]]
    live = (survivors[:, slots] | taken).reshape(layers, heads, held)
    return RowPlan(blocks, slots, head, source, destination, live, block_size)


def end_to_end(rows: Sequence[tuple[Indices, RowPlan]]) -> tuple[Indices, Indices]:
    """Return the moves of several rows, each given with its blocks, as those of one row after the other.

    The blocks of all, and int64 ``[3, moves]``: heads, ascending, and the slots left and taken.
    """
    moves, start = [np.empty((3, 0), np.int64)], 0
    for blocks, plan in rows:
        moves.append(np.stack([plan.head, plan.source + start, plan.destination + start]))
        start += len(blocks) * plan.block_size
    joined = np.concatenate(moves, axis=1)
    numbers = np.concatenate([np.empty(0, np.int64), *(blocks for blocks, _ in rows)])
    return numbers, joined[:, np.argsort(joined[0], kind="stable")]
