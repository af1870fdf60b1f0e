"""The ledger of many runs at once: each run is one head with a block table of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvreclaim.compaction import compaction_cost
from kvreclaim.keep import KeepMask
from kvreclaim.layout import PER_HEAD, BlockLayout
from kvreclaim.occupancy import occupancy
from kvreclaim.study.settings import BLOCKS_PER_REQUEST

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Measures:
    """What the allocator sees in each run; arrays ``[runs]``.

    Parameters
    ----------
    tokens, block_size, blocks
        Length of a run's sequence, and its blocks.
    survivors
        Live tokens.
    free_blocks
        Blocks free with zero copies.
    freed_by_compaction
        Further blocks that full compaction frees.
    moved_tokens
        The fewest tokens it moves for that.
    """

    tokens: int
    block_size: int
    blocks: int
    survivors: IntArray
    free_blocks: IntArray
    freed_by_compaction: IntArray
    moved_tokens: IntArray

    @property
    def retained(self) -> FloatArray:
        """Live tokens / tokens."""
        return self.survivors / self.tokens

    @property
    def logical_saving(self) -> FloatArray:
        """Dead tokens / tokens."""
        return 1.0 - self.retained

    @property
    def physical_reclaim(self) -> FloatArray:
        """Free blocks / blocks, with zero copies."""
        return self.free_blocks / self.blocks

    @property
    def compacted_reclaim(self) -> FloatArray:
        """Free blocks / blocks, after full compaction."""
        return (self.free_blocks + self.freed_by_compaction) / self.blocks

    @property
    def reclaim_efficiency(self) -> FloatArray:
        """Physical reclaim / logical saving; NaN where nothing was evicted."""
        return _ratio(self.physical_reclaim, self.logical_saving)

    @property
    def fragmentation(self) -> FloatArray:
        """1 - live tokens / slots of the held blocks; NaN where none is held."""
        return 1.0 - _ratio(self.survivors, (self.blocks - self.free_blocks) * self.block_size)

    @property
    def moved_fraction(self) -> FloatArray:
        """Tokens that full compaction moves / live tokens; NaN where none is live."""
        return _ratio(self.moved_tokens, self.survivors)

    @property
    def slots_per_move(self) -> FloatArray:
        """Slots of the blocks that compaction itself frees / tokens moved; NaN where none moves."""
        return _ratio(self.freed_by_compaction * self.block_size, self.moved_tokens)

    @property
    def total_slots_per_move(self) -> FloatArray:
        """Slots of all free blocks after compaction / tokens moved; NaN where none moves."""
        return _ratio((self.free_blocks + self.freed_by_compaction) * self.block_size, self.moved_tokens)

    @property
    def admitted(self) -> IntArray:
        """Requests that the free blocks admit."""
        return requests(self.free_blocks)

    @property
    def admitted_after_compaction(self) -> IntArray:
        """Requests that the free blocks admit after full compaction."""
        return requests(self.free_blocks + self.freed_by_compaction)


def measure(runs: KeepMask, block_size: int) -> Measures:
    """Measure a keep mask ``[1, runs, tokens]`` whose heads are the runs."""
    layout = BlockLayout(block_size, PER_HEAD)
    live = occupancy(runs, layout)
    cost = compaction_cost(live, block_size)
    return Measures(
        tokens=runs.tokens,
        block_size=block_size,
        blocks=live.shape[1],
        survivors=live.sum(axis=1, dtype=np.int64),
        free_blocks=(live == 0).sum(axis=1),
        freed_by_compaction=cost.freed_blocks,
        moved_tokens=cost.moved_tokens,
    )


def stack(masks: Iterable[KeepMask]) -> KeepMask:
    """Make the runs of one mask ``[1, runs, tokens]`` from masks of one head each."""
    return KeepMask(np.concatenate([mask.array for mask in masks], axis=1))


def requests(free_blocks: IntArray) -> IntArray:
    """Return how many requests of 8 blocks the free blocks admit, all or nothing each."""
    return free_blocks // BLOCKS_PER_REQUEST


def _ratio(value: NDArray[np.number], by: NDArray[np.number]) -> FloatArray:
    ratio = np.full(value.shape, np.nan)
    np.divide(value, by, out=ratio, where=by != 0)
    return ratio
