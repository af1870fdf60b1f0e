"""When requests lose KV pairs under traffic, and what each loss gives back.

The number of survivors and of whole dead blocks comes from a policy's closed form, from recorded keep masks
or from a measured table; the kernel only looks it up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.serving.kernel import Rule
from kvreclaim.serving.kernel import state as places
from kvreclaim.validate import non_negative_int, positive_int

MODES = {"mask": places.MASK, "free": places.FREE_BLOCKS, "pack": places.PACK, "reuse": places.REUSE}
DYING = {"scattered": places.SCATTERED, "before window": places.BEFORE_WINDOW, "whole": places.WHOLE}
SINKS = 4  # StreamingLLM's
MOST_TOKENS = 1 << 27  # of a request that evictions are simulated of: a table of as many counts
Counts = NDArray[np.int64]
Survivors = Callable[[Counts], Counts]
DeadBlocks = Callable[[Counts, Counts, int], Counts]


@dataclass(frozen=True)
class Eviction:
    """An eviction and what the runtime does about it.

    Parameters
    ----------
    mode
        ``mask``: nothing goes back. ``free``: whole dead blocks do. ``pack``: survivors move together, all
        other blocks go back. ``reuse``: the next tokens fill the holes, nothing goes back.
    survivors
        At the end of a prefill: from slots filled to tokens that survive; None: prefills evict nothing.
    dead_blocks
        For ``free``, at the end of a prefill: from slots filled, survivors and the block size to whole dead
        blocks.
    budget, buffer
        While decoding: the slots that an eviction leaves, and those that fill up before the next one; a
        budget of 0: decoding evicts nothing.
    passing
        Evict only on the decode steps that pass a multiple of the buffer, as R-KV does.
    protect_prompt
        The budget is of generated tokens; the prompt stays, as in TensorRT-LLM.
    reserve
        Once evicted from, reserve budget + buffer + one block, as R-KV does, and give back blocks beyond that
        when next scheduled.
    dying
        For ``free``, while decoding: where dead slots lie. ``before window``: between the first slots (sinks,
        or the protected prompt) and a window that moves on; ``whole``: in whole blocks; ``scattered``: no
        block is dead in every head.

    Raises
    ------
    InputError
        If the mode is unknown, a number out of range, or nothing is ever evicted.
    """

    mode: str = "pack"
    survivors: Survivors | None = None
    dead_blocks: DeadBlocks | None = None
    budget: int = 0
    buffer: int = 0
    passing: bool = False
    protect_prompt: bool = False
    reserve: bool = False
    dying: str = "scattered"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(f"unknown mode {self.mode!r}: pass one of {', '.join(MODES)}")
        if non_negative_int(self.budget, "budget"):
            positive_int(self.buffer, "buffer")
        elif self.survivors is None:
            raise InputError(
                "the eviction evicts nothing: pass a policy, or a budget and a buffer for while decoding"
            )
        if self.dying not in DYING:
            raise InputError(f"dying is {self.dying!r}: pass one of {', '.join(DYING)}")

    def rule(self, longest: int, block_size: int) -> Rule:
        """Return the kernel's rule, its tables made for lengths up to `longest` tokens.

        Raises
        ------
        InputError
            If they would not fit into memory: of more than `MOST_TOKENS`.
        """
        if longest > MOST_TOKENS:
            raise InputError(
                f"a request of {longest:,} tokens: evictions are simulated up to {MOST_TOKENS:,}; pass "
                "shorter requests or a smaller pool"
            )
        left = freed = np.empty(0, np.int32)
        if self.survivors is not None:
            lengths = np.arange(longest + 1, dtype=np.int64)
            kept = np.clip(self.survivors(lengths), np.minimum(lengths, 1), lengths)
            left = kept.astype(np.int32)
            if self.dead_blocks is not None:
                whole = self.dead_blocks(lengths, kept, block_size)
                freed = np.clip(whole, 0, (lengths - kept) // block_size).astype(np.int32)
        return Rule(
            left_at=left,
            freed_at=freed,
            budget=self.budget,
            buffer=self.buffer,
            passing=int(self.passing),
            protect_prompt=int(self.protect_prompt),
            most_slots=self.budget + self.buffer + block_size if self.reserve else 0,
            mode=MODES[self.mode],
            dying=DYING[self.dying],
            sinks=SINKS,
        )


def rkv(budget: int, buffer: int, mode: str = "pack") -> Eviction:
    """Return R-KV's eviction (see `kvreclaim.eviction_rules.RKV`)."""
    reserve = mode == "pack"
    return Eviction(mode, budget=budget, buffer=buffer, passing=True, reserve=reserve)
