"""Evictions in the kernel: what a request loses, and which blocks that gives back.

mask          the dead stay where they are, and are read
free blocks   whole dead blocks go back; dead slots between survivors stay
pack          survivors move together; all other slots go back
reuse         dead slots are filled by the next tokens; nothing goes back, nothing grows until they are
"""

from __future__ import annotations

from numba import njit

from kvreclaim.serving.kernel.identity import forget, give, shared
from kvreclaim.serving.kernel.state import (
    BEFORE_WINDOW,
    BLOCKS_FREED,
    EVICTIONS,
    FREE,
    FREE_BLOCKS,
    MOVED,
    PACK,
    WHOLE,
)
from kvreclaim.serving.kernel.steps import blocks_for


@njit(cache=True, nogil=True)
def release(limits, blocks, full, state, request, slots):
    """Give back the blocks past so many slots, of each of the groups that see all tokens."""
    needed = blocks_for(slots, limits.block_size)
    freed = full * (state.held[request] - needed)
    if freed > 0:
        if blocks is not None:
            freed = give(blocks, request, needed, state.held[request])
        state.held[request] = needed
        state.counts[FREE] += freed
        state.counts[BLOCKS_FREED] += freed


@njit(cache=True, nogil=True)
def survivors(requests, rule, state, request, computed, tokens):
    """Return how many filled slots survive the end of this step; as many as live where nothing is evicted."""
    live = computed - state.offset[request] - state.dead[request]
    if state.prefilling[request] == 1:
        if rule.left_at.size > 0:
            return min(live, rule.left_at[live])
        if rule.budget == 0 or rule.passing == 1:
            return live if rule.passing == 0 else _passing(requests, rule, request, computed, tokens, live)
        return _within(requests, rule, request, live, rule.budget)
    if rule.budget == 0:
        return live
    if rule.passing == 1:
        return _passing(requests, rule, request, computed, tokens, live)
    return _within(requests, rule, request, live, rule.budget + rule.buffer - 1)


@njit(cache=True, nogil=True)
def _within(requests, rule, request, live, most):
    """Return the budget, with what is protected, where more than so many live past it."""
    protected = min(live, requests.prompt[request]) if rule.protect_prompt == 1 else 0
    return protected + rule.budget if live - protected > most else live


@njit(cache=True, nogil=True)
def _passing(requests, rule, request, computed, tokens, live):
    """Return the budget where the tokens decoded pass a multiple of the buffer and it is full."""
    decoded = computed - requests.prompt[request]
    passes = tokens == 1 and decoded > 0 and decoded // rule.buffer > (decoded - 1) // rule.buffer
    return _within(requests, rule, request, live, rule.budget + rule.buffer - 1) if passes else live


@njit(cache=True, nogil=True)
def evict(requests, limits, rule, blocks, full, state, request, computed, tokens):
    """Evict at the end of a step what the rule says; return the tokens copied."""
    live = computed - state.offset[request] - state.dead[request]
    left = survivors(requests, rule, state, request, computed, tokens)
    if blocks is not None:
        stays = shared(blocks, request, state.held[request])
        left = max(left, min(live, stays * limits.block_size))  # what others read is not evicted
        if left < live:
            forget(blocks, request, stays, state.held[request])
    if left >= live:
        return 0
    dropped = live - left
    state.counts[EVICTIONS] += 1
    if rule.mode == PACK:
        state.offset[request] += dropped + state.dead[request]
        state.dead[request] = 0
        state.counts[MOVED] += left
    elif rule.mode == FREE_BLOCKS:
        whole = _whole_blocks(requests, limits, rule, state, request, live, left)
        state.offset[request] += whole * limits.block_size
        state.dead[request] += dropped - whole * limits.block_size
    else:
        state.dead[request] += dropped
    if rule.most_slots == 0:
        release(limits, blocks, full, state, request, computed - state.offset[request])
    return left if rule.mode == PACK else 0


@njit(cache=True, nogil=True)
def _whole_blocks(requests, limits, rule, state, request, live, left):
    """Return how many whole blocks die, slots that died before and are held still among them.

    While decoding a window moves on: what is dead lies between the first slots and the window, or fills whole
    blocks, or lies where no block is dead in every head.
    """
    size = limits.block_size
    if state.prefilling[request] == 1 and rule.freed_at.size > 0:
        return min(rule.freed_at[live], (live - left) // size)
    dead = live + state.dead[request] - left
    if rule.dying == WHOLE:
        return dead // size
    if rule.dying == BEFORE_WINDOW:
        first = requests.prompt[request] if rule.protect_prompt == 1 else rule.sinks
        first = min(first, left)
        return max(0, (first + dead) // size - blocks_for(first, size))
    return 0
