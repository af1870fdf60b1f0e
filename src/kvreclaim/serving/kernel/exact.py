"""The exact path: every request of every step, with preemption and eviction.

Held to `kvreclaim.scheduler` request by request; the rules are explained there.
"""

from __future__ import annotations

from numba import njit

from kvreclaim.serving.kernel.evict import evict, release, reserved
from kvreclaim.serving.kernel.state import (
    ARRIVED,
    BLOCKED,
    BUSY,
    FREE,
    HEAD,
    NOW,
    PREEMPTIONS,
    RUNNING,
    STEPS,
    TAIL,
    TOKENS,
)
from kvreclaim.serving.kernel.steps import (
    ALL_DONE,
    AMPLE,
    ROWS_FULL,
    admissible,
    arrive,
    begin,
    blocks_for,
    count_peaks,
    due,
    end,
    next_sample,
    sample,
)

# Steps without shortage, and that free blocks last for, before the aggregated path takes over.
CALM_STEPS = 64


@njit(cache=True, nogil=True)
def exact(requests, limits, costs, rule, state, may_leave):
    """Run step by step until all is done, sample rows are full, or (where it may leave) blocks abound."""
    counts, clock, queue, running, tokens = (
        state.counts,
        state.clock,
        state.queue,
        state.running,
        state.tokens,
    )
    arrival, prompt, output = requests.arrival, requests.prompt, requests.output
    known, computed, held, prefilling = state.known, state.computed, state.held, state.prefilling
    finish, status, scheduled, first_token = state.finish, state.status, state.scheduled, state.first_token
    preemptions, block_size = state.preemptions, limits.block_size
    calm = 0
    while True:
        if next_sample(counts, clock) <= clock[NOW] and not _sample(requests, state, rule):
            return ROWS_FULL
        if due(counts, clock, arrival):
            arrive(requests, state, clock[NOW])
        count = before = counts[RUNNING]
        if count == 0 and counts[HEAD] == counts[TAIL]:
            if counts[ARRIVED] == arrival.size:
                return ALL_DONE
            clock[NOW] = max(clock[NOW], arrival[counts[ARRIVED]])
            continue
        if may_leave and calm >= CALM_STEPS and counts[FREE] * block_size >= CALM_STEPS * count:
            return AMPLE
        # what runs, in order; where blocks lack, the tail is preempted
        budget, place, decodes, kv_tokens = limits.max_tokens, 0, 0, 0
        while place < count and budget > 0:
            request = running[place]
            done = computed[request]
            chunk = min(known[request] - done, budget)
            filled = slots = done + chunk
            if rule is not None:
                filled, slots = reserved(rule, state, request, chunk)
                release(limits, state, request, slots)
            need = 0
            if slots > held[request] * block_size:
                need = blocks_for(slots, block_size) - held[request]
            while need > counts[FREE] and count > place:
                count -= 1
                _preempt(counts, queue, computed, held, preemptions, running[count])
                if rule is not None:
                    state.offset[running[count]] = 0
                    state.dead[running[count]] = 0
            if count == place:
                break
            held[request] += need
            counts[FREE] -= need
            tokens[place] = chunk
            budget -= chunk
            kv_tokens += filled
            if chunk == 1 and done >= prompt[request]:
                decodes += 1
            if rule is not None:
                state.dead[request] -= done + chunk - state.offset[request] - filled
                state.offset[request] = done + chunk - filled
            place += 1
        for rest in range(place, count):
            tokens[rest] = 0
        # who waits, in order
        if count == before:
            while budget > 0 and counts[HEAD] < counts[TAIL] and count < limits.max_seqs:
                request = queue[counts[HEAD]]
                chunk = admissible(limits, counts[FREE], known[request], budget, count)
                if chunk == 0:
                    counts[BLOCKED] += 1
                    break
                blocks = blocks_for(chunk, block_size)
                begin(counts, clock, computed, held, prefilling, scheduled, request, blocks)
                running[count] = request
                tokens[count] = chunk
                count += 1
                budget -= chunk
                kv_tokens += chunk
            calm += 1
        else:
            calm = 0
        counts[RUNNING] = count
        if count == 0:
            continue
        count_peaks(counts, limits.blocks, count)
        prefill_tokens = limits.max_tokens - budget - decodes
        seconds = (
            costs.base
            + costs.decode * decodes
            + costs.kv_token * kv_tokens
            + costs.prefill_token * prefill_tokens
        )
        counts[STEPS] += 1
        counts[TOKENS] += limits.max_tokens - budget
        if rule is not None:
            seconds += _evictions(requests, limits, costs, rule, state)
        clock[NOW] += seconds
        clock[BUSY] += seconds
        # tokens computed, and requests that have all of theirs
        stay = 0
        for place in range(count):
            request = running[place]
            computed[request] += tokens[place]
            if computed[request] == known[request]:
                known[request] += 1
                prefilling[request] = 0
                if first_token[request] != first_token[request]:
                    first_token[request] = clock[NOW]
                if known[request] == prompt[request] + output[request]:
                    end(counts, clock, finish, status, request, held[request])
                    continue
            running[stay] = request
            stay += 1
        counts[RUNNING] = stay


@njit(inline="always")
def _preempt(counts, queue, computed, held, preemptions, victim):
    """Put a request back to the head of the queue, to be computed again from its first token."""
    counts[FREE] += held[victim]
    held[victim] = 0
    computed[victim] = 0
    counts[HEAD] -= 1
    queue[counts[HEAD]] = victim
    preemptions[victim] += 1
    counts[PREEMPTIONS] += 1


@njit(cache=True, nogil=True)
def _evictions(requests, limits, costs, rule, state):
    """Let the rule act on the requests that get a token now and go on; return the copies' seconds."""
    seconds = 0.0
    for place in range(state.counts[RUNNING]):
        request = state.running[place]
        computed = state.computed[request] + state.tokens[place]
        goes_on = computed + 1 < requests.prompt[request] + requests.output[request]
        if state.tokens[place] > 0 and computed == state.known[request] and goes_on:
            moved = evict(requests, limits, rule, state, request, computed, state.tokens[place])
            if moved > 0:
                seconds += costs.copy_event + costs.copy_token * moved
    return seconds


@njit(cache=True, nogil=True)
def _sample(requests, state, rule):
    filled = dead = 0
    for place in range(state.counts[RUNNING]):
        request = state.running[place]
        filled += state.computed[request]
        if rule is not None:
            filled -= state.offset[request]
            dead += state.dead[request]
    return sample(requests, state, state.counts[RUNNING], filled, dead, 0)
