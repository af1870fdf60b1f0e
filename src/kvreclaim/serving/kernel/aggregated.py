"""The aggregated path: while no preemption can happen, decodes are a count, a sum and block phases.

Every decode computes one token a step, so all that a step needs of them is how many there are, how many
tokens they know in all, and how many open a new block now: those whose tokens modulo the block size have come
round. Finishes lie in a ring by the step that brings them. At most one request is in the middle of its
prefill, the last one admitted. What the end of a prefill evicts only moves a request's tokens to lower slots,
so that its decodes are counted by slots. A step costs some nanoseconds, however many requests run; its times
are those of the exact path bit by bit.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kvreclaim.serving.kernel.evict import evict
from kvreclaim.serving.kernel.state import (
    ARRIVED,
    BLOCKED,
    BUSY,
    FREE,
    HEAD,
    NOW,
    RUNNING,
    SHORT_STEPS,
    STEPS,
    TAIL,
    TOKENS,
)
from kvreclaim.serving.kernel.steps import (
    ALL_DONE,
    HUNGRY,
    SHORT,
    WRITTEN,
    arrive,
    begin,
    blocks_for,
    count_peaks,
    due,
    end,
    first_chunk,
    fits,
    hungry,
    next_sample,
    sample,
)

# Places in `sums`: decodes, the slots that their next tokens fill up to, their dead slots, the request in the
# middle of its prefill or -1, and the step modulo the block size.
_DECODES, _SLOTS, _DEAD, _PARTIAL, _PHASE = range(5)


@njit(cache=True, nogil=True)
def aggregated(requests, limits, costs, rule, state, ring):
    """Run until all is done, the caller has to act, or blocks lack, which leaves that step to the exact path.

    `rule` is None or evicts at the end of prefills alone, and not for reuse, where requests do not grow.
    `ring` is int32, a power of two longer than the longest output, all -1 between calls.
    """
    counts, clock, queue = state.counts, state.clock, state.queue
    arrival, prompt, output = requests.arrival, requests.prompt, requests.output
    known, computed, held, prefilling = state.known, state.computed, state.held, state.prefilling
    since, link, offset, dead = state.since, state.link, state.offset, state.dead
    finish, status, scheduled, first_token = state.finish, state.status, state.scheduled, state.first_token
    block_size = limits.block_size
    phases = np.zeros(block_size, np.int64)
    sums = np.zeros(5, np.int64)
    _enter(requests, limits, rule, state, ring, phases, sums)
    while True:
        decodes, partial = sums[_DECODES], sums[_PARTIAL]
        running = decodes + (partial >= 0)
        if next_sample(counts, clock) <= clock[NOW]:
            filled = sums[_SLOTS] - decodes + (computed[partial] if partial >= 0 else 0)
            answer = sample(requests, state, running, filled, sums[_DEAD], 0)
            if answer != WRITTEN:
                _leave(limits, rule, state, ring, sums)
                return answer
        if due(counts, clock, arrival):
            arrive(requests, state, clock[NOW])
        if hungry(counts, arrival):
            _leave(limits, rule, state, ring, sums)
            return HUNGRY
        if running == 0 and counts[HEAD] == counts[TAIL]:
            if counts[ARRIVED] == arrival.size:
                _leave(limits, rule, state, ring, sums)
                return ALL_DONE
            clock[NOW] = max(clock[NOW], arrival[counts[ARRIVED]])
            continue
        # the blocks and tokens of what runs
        need = phases[sums[_PHASE]]
        budget = limits.max_tokens - decodes
        chunk = more = lone = 0
        kv_tokens = sums[_SLOTS]
        if partial >= 0 and budget > 0:
            chunk = min(known[partial] - computed[partial], budget)
            more = blocks_for(computed[partial] + chunk, block_size) - held[partial]
            kv_tokens += computed[partial] + chunk
            lone = 1 if chunk == 1 and computed[partial] >= prompt[partial] else 0
        if need + more > counts[FREE]:
            _leave(limits, rule, state, ring, sums)
            return SHORT
        counts[FREE] -= need + more
        budget -= chunk
        # admissions
        first, tokens = counts[HEAD], 0
        while budget > 0 and counts[HEAD] < counts[TAIL] and running < limits.max_seqs:
            request = queue[counts[HEAD]]
            chunked = first_chunk(limits, known[request], budget)
            whole = known[request] if limits.reserve_full_input == 1 else chunked
            if chunked == 0:
                break
            if not fits(limits, counts[FREE], blocks_for(whole, block_size), running):
                counts[BLOCKED] += 1
                break
            tokens = chunked
            blocks = blocks_for(tokens, block_size)
            counts[FREE] -= blocks
            begin(counts, clock, computed, held, prefilling, scheduled, request, 0, blocks)
            running += 1
            budget -= tokens
            kv_tokens += tokens
        count_peaks(counts, limits.blocks, running)
        prefill_tokens = limits.max_tokens - budget - decodes - lone
        seconds = (
            costs.base
            + costs.decode * (decodes + lone)
            + costs.kv_token * kv_tokens
            + costs.prefill_token * prefill_tokens
        )
        counts[TOKENS] += limits.max_tokens - budget
        # prefills that got on: the one in the middle, and those admitted, of which the last may be cut short
        since_partial = first
        if chunk > 0:
            since_partial -= 1
            held[partial] += more
            computed[partial] += chunk
        for place in range(first, counts[HEAD]):
            computed[queue[place]] = known[queue[place]]
        if counts[HEAD] > first:
            computed[queue[counts[HEAD] - 1]] = tokens
        if rule is not None:
            copying = 0.0
            for place in range(since_partial, counts[HEAD]):
                request = partial if place < first else queue[place]
                copying += _eviction(requests, limits, costs, rule, state, request)
            seconds += copying
        clock[NOW] += seconds
        clock[BUSY] += seconds
        # decodes that got their last token
        sums[_SLOTS] += decodes
        slot = counts[STEPS] & (ring.size - 1)
        request = ring[slot]
        while request >= 0:
            slots = _slots(rule, known, offset, request)
            last = slots + counts[STEPS] - since[request]
            sums[_DECODES] -= 1
            sums[_SLOTS] -= last + 1
            sums[_DEAD] -= _dead(rule, dead, request)
            phases[(since[request] + 1 - slots) % block_size] -= 1
            counts[FREE] += blocks_for(last, block_size)
            end(counts, clock, finish, status, request)
            request = link[request]
        ring[slot] = -1
        counts[STEPS] += 1
        counts[SHORT_STEPS] += 1
        sums[_PHASE] += 1
        if sums[_PHASE] == block_size:
            sums[_PHASE] = 0
        # prefills that ended
        if chunk > 0:
            sums[_PARTIAL] = -1
        for place in range(since_partial, counts[HEAD]):
            request = partial if place < first else queue[place]
            if computed[request] < known[request]:
                sums[_PARTIAL] = request
                continue
            known[request] += 1
            prefilling[request] = 0
            if first_token[request] != first_token[request]:
                first_token[request] = clock[NOW]
            if known[request] == prompt[request] + output[request]:
                counts[FREE] += held[request]
                end(counts, clock, finish, status, request)
            else:
                step = counts[STEPS]
                _decode(
                    requests,
                    block_size,
                    rule,
                    step,
                    known,
                    offset,
                    dead,
                    since,
                    link,
                    ring,
                    phases,
                    sums,
                    request,
                )


@njit(cache=True, nogil=True)
def _eviction(requests, limits, costs, rule, state, request):
    """Let the end of a prefill evict, where a request goes on after it; return the copies' seconds."""
    computed = state.computed[request]
    if computed < state.known[request] or computed + 1 == requests.prompt[request] + requests.output[request]:
        return 0.0
    moved = evict(requests, limits, rule, None, 1, state, request, computed, 0)
    return costs.copy_event + costs.copy_token * moved if moved > 0 else 0.0


@njit(inline="always")
def _slots(rule, known, offset, request):
    """Return the slots that a request's next token fills up to."""
    slots = known[request]
    if rule is not None:
        slots -= offset[request]
    return slots


@njit(inline="always")
def _dead(rule, dead, request):
    slots = 0
    if rule is not None:
        slots = dead[request]
    return slots


@njit(inline="always")
def _decode(requests, block_size, rule, step, known, offset, dead, since, link, ring, phases, sums, request):
    """Add a request to the decodes of the steps to come."""
    slots = _slots(rule, known, offset, request)
    since[request] = step
    sums[_DECODES] += 1
    sums[_SLOTS] += slots
    sums[_DEAD] += _dead(rule, dead, request)
    phases[(step + 1 - slots) % block_size] += 1
    left = requests.prompt[request] + requests.output[request] - known[request]
    slot = (step + left - 1) & (ring.size - 1)
    link[request] = ring[slot]
    ring[slot] = request


@njit(cache=True, nogil=True)
def _enter(requests, limits, rule, state, ring, phases, sums):
    """Sum up the running requests."""
    sums[_PARTIAL] = -1
    sums[_PHASE] = state.counts[STEPS] % limits.block_size
    for place in range(state.counts[RUNNING]):
        request = state.running[place]
        if state.prefilling[request] == 1:
            sums[_PARTIAL] = request
        else:
            _decode(
                requests,
                limits.block_size,
                rule,
                state.counts[STEPS],
                state.known,
                state.offset,
                state.dead,
                state.since,
                state.link,
                ring,
                phases,
                sums,
                request,
            )


@njit(cache=True, nogil=True)
def _leave(limits, rule, state, ring, sums):
    """Bring every running request up to date, in the order of the running queue, and empty the ring."""
    counts = state.counts
    count = 0
    for offset in range(ring.size):
        if count == sums[_DECODES]:
            break
        slot = (counts[STEPS] + offset) & (ring.size - 1)
        request = ring[slot]
        ring[slot] = -1
        while request >= 0:
            state.known[request] += counts[STEPS] - state.since[request]
            state.computed[request] = state.known[request] - 1
            slots = _slots(rule, state.known, state.offset, request)
            state.held[request] = blocks_for(slots - 1, limits.block_size)
            state.running[count] = request
            count += 1
            request = state.link[request]
    state.running[:count].sort()  # first come first served: a request runs ahead of those that came later
    if sums[_PARTIAL] >= 0:
        state.running[count] = sums[_PARTIAL]
        count += 1
    counts[RUNNING] = count
