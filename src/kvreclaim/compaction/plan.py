"""The moves of a compaction.

    block 0 |# . # #|   block 1 |. # . .|   block 2 |# # # .|        # live   . dead or unfilled
                 <───────────── one token moves from block 1 into a dead slot of block 0, block 1 is free

Sources are blocks that the plan empties, destinations dead or unfilled slots of blocks that stay. The two
never meet, so no move overwrites a pair that has yet to move: the moves are safe in place, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim.compaction.choose import cheapest_sources
from kvreclaim.keep import KeepMask, as_keep_mask
from kvreclaim.layout.tables import BlockLayout
from kvreclaim.occupancy import live_tokens, occupancy

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CompactionPlan:
    """Moves of whole tokens, each within one block table, and the blocks that they free.

    Parameters
    ----------
    table, source_block, source_slot, destination_block, destination_slot
        int64 ``[moves]``: move i copies the token (in all tensors that the table maps) at a block's slot to
        another block's slot. Blocks are numbered within their table, slots within their block.
    freed_blocks
        int64 ``[freed, 2]``: (table, block) of each block that the moves empty. Blocks that were free before
        are not among them.
    """

    table: Indices
    source_block: Indices
    source_slot: Indices
    destination_block: Indices
    destination_slot: Indices
    freed_blocks: Indices

    @property
    def moved_tokens(self) -> int:
        """Tokens that move."""
        return len(self.table)

    @property
    def freed(self) -> int:
        """Blocks that the moves free."""
        return len(self.freed_blocks)


def plan_compaction(
    keep: KeepMask | ArrayLike, layout: BlockLayout, copy_budget: int | None = None
) -> CompactionPlan:
    """Plan the compaction that frees the most blocks within a copy budget, at the fewest moves.

    Parameters
    ----------
    keep
        A `KeepMask`, or an array of rank 1 to 3.
    layout
        Block size, kind of block table and layer groups.
    copy_budget
        The most tokens that may move, counted over all tables; None for no limit.

    Returns
    -------
    CompactionPlan
        Optimal: no sequence of single-token moves within the budget frees more blocks.

    Raises
    ------
    InputError
        If the mask or the layout is not one, they do not fit each other, or the budget is not a whole number.
    """
    mask = as_keep_mask(keep)
    live = occupancy(mask, layout)
    sources = cheapest_sources(live, layout.block_size, copy_budget)
    slots = _slots(live_tokens(mask, layout), live.shape[1], min(layout.block_size, mask.tokens))
    receivers = (live > 0) & ~sources
    source = np.argwhere(slots & sources[:, :, None])
    moves_of_table = np.where(sources, live, 0).sum(axis=1, dtype=np.int64)
    receivers[moves_of_table == 0] = False
    destination = _first_of_each_table(np.argwhere(~slots & receivers[:, :, None]), moves_of_table)
    return CompactionPlan(
        table=source[:, 0],
        source_block=source[:, 1],
        source_slot=source[:, 2],
        destination_block=destination[:, 1],
        destination_slot=destination[:, 2],
        freed_blocks=np.argwhere(sources),
    )


def _slots(live: NDArray[np.bool_], blocks: int, block_size: int) -> NDArray[np.bool_]:
    """Fold live tokens ``[tables, tokens]`` into ``[tables, blocks, block_size]``, unfilled slots False."""
    tables, tokens = live.shape
    slots = np.zeros((tables, blocks * block_size), np.bool_)
    slots[:, :tokens] = live
    return slots.reshape(tables, blocks, block_size)


def _first_of_each_table(places: Indices, wanted: Indices) -> Indices:
    """Return the first ``wanted[t]`` rows of each table t; rows are sorted by their table, in column 0."""
    tables = places[:, 0]
    rank = np.arange(len(tables)) - np.searchsorted(tables, np.arange(len(wanted)))[tables]
    return places[rank < wanted[tables]]
