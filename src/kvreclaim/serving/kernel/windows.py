"""Groups of layers with their own window: each has a table, all take from one pool.

A group whose layers see a window gives a block back when the window has moved past it, before the next tokens
are given theirs (vLLM's ``remove_skipped_blocks``). Evictions leave such groups alone: a window is all they
keep. Groups that see all tokens hold blocks for the same slots, each in its table: one count stands for all.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from kvreclaim.serving.kernel.state import Ints
from kvreclaim.serving.kernel.steps import blocks_for


class Groups(NamedTuple):
    """How many groups see all tokens, and int32 ``[others]``, the windows of the others."""

    full: int
    windows: Ints


@njit(cache=True, nogil=True)
def passed(window, computed, block_size):
    """Return the blocks that a window has moved past when so many tokens are computed."""
    return max(0, computed - window + 1) // block_size


@njit(cache=True, nogil=True)
def windowed(groups, computed, tokens, block_size):
    """Return the blocks of all groups with a window while so many tokens are computed after so many."""
    total = 0
    for window in groups.windows:
        total += blocks_for(computed + tokens, block_size) - passed(window, computed, block_size)
    return total


@njit(cache=True, nogil=True)
def most_held(groups, tokens, max_tokens, block_size):
    """Return the most blocks that all groups hold at once while so many tokens are computed in chunks."""
    blocks = blocks_for(tokens, block_size)
    total = groups.full * blocks
    for window in groups.windows:
        total += min(blocks, blocks_for(window - 1 + max_tokens, block_size) + 1)
    return total
