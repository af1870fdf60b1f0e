"""Which blocks to keep and which to empty; linear in the number of blocks.

Freeing a set of blocks moves each of their live tokens at least once, and the blocks that stay hold them all
as long as there are at least ceil(live / B) of them. So the optimum empties the least filled nonempty blocks:
of one table with n' nonempty blocks and L live tokens, up to n' - ceil(L / B) of them, in ascending order.
Over several tables these ascending costs are merged.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.histogram import Counts, Histogram, fullest_sum, histogram, nonempty, total
from kvreclaim.validate import check_block_size, non_negative_int, shown


class CompactionCost(NamedTuple):
    """What full compaction of each table takes and gives; arrays ``[tables]``.

    ``min_blocks`` blocks that its live tokens need; ``freed_blocks`` nonempty blocks that compaction itself
    frees; ``moved_tokens`` the fewest tokens that must move for it.
    """

    min_blocks: NDArray[np.int64]
    freed_blocks: NDArray[np.int64]
    moved_tokens: NDArray[np.int64]


def compaction_cost(live: Counts, block_size: int) -> CompactionCost:
    """Return what full compaction of each table costs, without making the moves.

    Parameters
    ----------
    live
        Live tokens of each block, ``[tables, blocks]``, as `kvreclaim.occupancy` gives them.
    block_size
        Tokens of one block.

    Raises
    ------
    InputError
        If the counts are not of rank 2, or the block size is not a positive integer.
    """
    size = check_block_size(block_size)
    _check_tables(live, size)
    return cost_of_histogram(histogram(live, int(live.max())), size)


def cost_of_histogram(blocks: Histogram, block_size: int) -> CompactionCost:
    """Return what full compaction costs, from the blocks of each table by their live tokens."""
    totals = total(blocks)
    min_blocks = -(-totals // block_size)
    return CompactionCost(min_blocks, nonempty(blocks) - min_blocks, totals - fullest_sum(blocks, min_blocks))


def cheapest_sources(live: Counts, block_size: int, copy_budget: int | None = None) -> NDArray[np.bool_]:
    """Choose the blocks that compaction empties: the most that the budget allows, at the fewest moves.

    Parameters
    ----------
    live
        Live tokens of each block, ``[tables, blocks]``.
    block_size
        Tokens of one block.
    copy_budget
        The most tokens that may move, over all tables; None for no limit.

    Returns
    -------
    bool ``[tables, blocks]``
        True for the blocks to empty; the other nonempty blocks of the table hold their tokens.

    Raises
    ------
    InputError
        If the counts are not of rank 2, the block size is not a positive integer, or the budget is negative.
    """
    freed = compaction_cost(live, block_size).freed_blocks
    chosen = np.stack([_least_filled(row, int(count)) for row, count in zip(live, freed, strict=True)])
    if copy_budget is None:
        return chosen
    budget = non_negative_int(copy_budget, "copy_budget")
    costs = (live * chosen).ravel()
    return _least_filled(costs, _affordable(costs, budget)).reshape(live.shape)


def _least_filled(live: Counts, count: int) -> NDArray[np.bool_]:
    """Mark the ``count`` least filled nonempty blocks of one row; of equals, the first."""
    up_to = np.cumsum(_nonempty_by_value(live))
    limit = int(np.searchsorted(up_to, count))
    if limit == 0:
        return np.zeros(live.shape, np.bool_)
    chosen = (live > 0) & (live < limit)
    equals = np.flatnonzero(live == limit)
    chosen[equals[: count - int(up_to[limit - 1])]] = True
    return chosen


def _affordable(costs: Counts, budget: int) -> int:
    """Return how many of the positive costs, in ascending order, sum to at most the budget."""
    of_value = _nonempty_by_value(costs)
    spent = np.concatenate([[0], np.cumsum(of_value * np.arange(len(of_value)))])
    # All of the costs below this one fit.
    whole_values = int(np.searchsorted(spent, budget, side="right")) - 1
    count = int(of_value[:whole_values].sum())
    if whole_values < len(of_value):
        count += int((budget - spent[whole_values]) // whole_values)
    return count


def _nonempty_by_value(counts: Counts) -> NDArray[np.int64]:
    """Count one row's blocks by their value, leaving out those of value 0."""
    of_value: NDArray[np.int64] = histogram(counts[None], int(counts.max()))[0]
    of_value[0] = 0
    return of_value


def _check_tables(live: Counts, block_size: int) -> None:
    if not isinstance(live, np.ndarray):
        raise InputError(f"live counts are {shown(live)}: pass an array of integers [tables, blocks]")
    if live.ndim != 2 or live.size == 0 or live.dtype.kind not in "iu":
        raise InputError(
            f"live counts must be integers [tables, blocks], got {live.dtype} of shape {live.shape}"
        )
    if live.min() < 0 or live.max() > block_size:
        raise InputError(
            f"live counts from {live.min()} to {live.max()}: pass those of blocks of "
            f"{block_size}, none negative"
        )
