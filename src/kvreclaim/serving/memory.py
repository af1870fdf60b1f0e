"""What is particular about a pool: shared prefixes, pages under its blocks, groups of layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.scheduling import NULL_BLOCKS, SchedulerSettings
from kvreclaim.serving.kernel.blocks import Blocks, new_blocks
from kvreclaim.serving.kernel.windows import Groups
from kvreclaim.serving.trace import Trace, Traffic
from kvreclaim.validate import LARGEST_POOL, non_negative_int


@dataclass(frozen=True)
class Memory:
    """A pool beyond its number of blocks.

    Parameters
    ----------
    share_prefixes
        Find the leading blocks of a prompt by their hashes, as vLLM's prefix caching does: blocks are
        reference-counted, and a free one keeps its tokens until it is taken again. A block whose tokens
        are in the pool already is kept, and can't be found itself.
    page_blocks
        Blocks of a VMM page, to count the pages held; 0: none. A page is taken only when no partly used one
        has a free block, and goes back when all its blocks are free; the null block pins the first.
    group_windows
        The attention window of each group of layers (None: all tokens), each with a table of its own; empty:
        one group that sees all.

    Raises
    ------
    InputError
        If a number is negative.
    """

    share_prefixes: bool = False
    page_blocks: int = 0
    group_windows: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        non_negative_int(self.page_blocks, "page_blocks")
        for window in self.group_windows:
            if window is not None and window < 1:
                raise InputError(f"a group's window is {window}: pass tokens, at least 1, or None")

    def check(self, trace: Traffic, settings: SchedulerSettings, *, evicting: bool) -> None:
        """Refuse what can't be simulated together."""
        if self.group_windows and self.share_prefixes:
            raise InputError(
                "groups of layers are simulated without shared prefixes: how much of a prefix is found would "
                "depend on which blocks each group's window still holds"
            )
        if self.group_windows and None not in self.group_windows and evicting:
            raise InputError(
                "every group of layers has a window, and a window is all it keeps: pass no eviction, or a "
                "model with layers that see all tokens"
            )
        if self.by_block and settings.blocks > LARGEST_POOL:
            raise InputError(
                f"blocks is {settings.blocks:,}: pass at most {LARGEST_POOL:,} with pages or shared prefixes"
            )
        if not self.share_prefixes:
            return
        if self.page_blocks:
            raise InputError(
                "shared prefixes are simulated without pages: a free block that keeps its tokens keeps its "
                "page too, and which one is taken first would decide both (see `serving.idle`)"
            )
        if trace.prefixes is None:
            raise InputError(f"{trace.name}: has no prefix hashes to share; pass a trace of Mooncake's kind")
        if trace.prefixes.block_tokens % settings.block_size:
            raise InputError(
                f"{trace.name}: its hashes are of {trace.prefixes.block_tokens} tokens; pass a block size "
                "that divides them"
            )

    @property
    def groups(self) -> Groups | None:
        """The groups for the kernel."""
        if not self.group_windows:
            return None
        windows = [window for window in self.group_windows if window is not None]
        return Groups(len(self.group_windows) - len(windows), np.array(windows, np.int32))

    @property
    def by_block(self) -> bool:
        """Whether it matters which block is whose."""
        return self.share_prefixes or self.page_blocks > 0

    def blocks(self, trace: Traffic, first: Trace, settings: SchedulerSettings) -> Blocks | None:
        """Return the blocks as individuals, for a trace's first window, where it matters which is whose."""
        if not self.by_block:
            return None
        hashes = None
        if self.share_prefixes and trace.prefixes is not None:
            per_hash = trace.prefixes.block_tokens // settings.block_size
            hashes = (trace.prefixes.offsets, trace.prefixes.ids, per_hash)
        longest, groups = sum(trace.longest), self.groups
        return new_blocks(
            settings.blocks,
            min(settings.max_num_seqs, trace.requests) + 1,
            settings.blocks_for(longest) + 1,
            first.requests,
            full=1 if groups is None else groups.full,
            windowed=0 if groups is None else groups.windows.size,
            hashes=hashes,
            per_page=self.page_blocks,
            null_blocks=NULL_BLOCKS if self.page_blocks else 0,
        )

    def most_blocks(self, tokens: NDArray[np.int64], settings: SchedulerSettings) -> NDArray[np.int64]:
        """Return the most blocks that requests of so many tokens hold at once, alone."""
        whole = -(-tokens // settings.block_size)
        if not self.group_windows:
            return whole
        total = np.zeros_like(whole)
        for window in self.group_windows:
            most = whole.max() if window is None else _chunked(window, settings)
            total += np.minimum(whole, most)
        return total


def _chunked(window: int, settings: SchedulerSettings) -> int:
    return settings.blocks_for(window - 1 + settings.max_num_batched_tokens) + 1
