"""Groups of layers with their own window: each has a table, all take from one pool.

A group whose layers see a window gives a block back when the window has moved past it, before the next tokens
are given theirs (vLLM's ``remove_skipped_blocks``).
"""

from __future__ import annotations

from numba import njit

from kvreclaim.serving.kernel.steps import blocks_for


@njit(cache=True, nogil=True)
def windowed(windows, computed, tokens, block_size):
    """Return the blocks of all groups while so many tokens are computed after so many; window 0 sees all."""
    total = 0
    for window in windows:
        passed = max(0, computed - window + 1) // block_size if window > 0 else 0
        total += blocks_for(computed + tokens, block_size) - passed
    return total


@njit(cache=True, nogil=True)
def most_windowed(windows, tokens, max_tokens, block_size):
    """Return the most blocks that all groups hold at once while so many tokens are computed in chunks."""
    total = 0
    for window in windows:
        blocks = blocks_for(tokens, block_size)
        if window > 0:
            blocks = min(blocks, blocks_for(window - 1 + max_tokens, block_size) + 1)
        total += blocks
    return total
