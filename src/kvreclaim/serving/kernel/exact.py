"""The exact path: every request of every step, with preemption and eviction.

Held to `kvreclaim.scheduler` request by request; the rules are explained there.
"""

from __future__ import annotations

from numba import njit

from kvreclaim.serving.kernel.blocks import PAGES
from kvreclaim.serving.kernel.evict import evict, release
from kvreclaim.serving.kernel.identity import (
    cached,
    close_row,
    give,
    hashed,
    leave,
    open_row,
    remember,
    share,
    slide,
    take,
)
from kvreclaim.serving.kernel.state import (
    ARRIVED,
    BLOCKED,
    BUSY,
    FREE,
    HEAD,
    NOW,
    PREEMPTIONS,
    REUSE,
    RUNNING,
    STEPS,
    TAIL,
    TOKENS,
)
from kvreclaim.serving.kernel.steps import (
    ALL_DONE,
    AMPLE,
    HUNGRY,
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
from kvreclaim.serving.kernel.windows import most_held, windowed

# Steps without shortage, and that free blocks last for, before the aggregated path takes over.
CALM_STEPS = 64


@njit(cache=True, nogil=True)
def exact(requests, limits, costs, rule, blocks, groups, state, may_leave):
    """Run step by step until all is done, the caller has to act, or (where it may leave) blocks abound."""
    counts, clock, queue = state.counts, state.clock, state.queue
    running, tokens, preemptions = state.running, state.tokens, state.preemptions
    arrival, prompt, output = requests.arrival, requests.prompt, requests.output
    known, computed, held, prefilling = state.known, state.computed, state.held, state.prefilling
    finish, status, scheduled, first_token = state.finish, state.status, state.scheduled, state.first_token
    offset, dead, behind, block_size = state.offset, state.dead, state.behind, limits.block_size
    full, calm = 1, 0
    if groups is not None:
        full = groups.full
    while True:
        if next_sample(counts, clock) <= clock[NOW]:
            answer = _sample(requests, rule, blocks, state)
            if answer != WRITTEN:
                return answer
        if due(counts, clock, arrival):
            arrive(requests, state, clock[NOW])
        if hungry(counts, arrival):
            return HUNGRY
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
                filled = slots = filled - offset[request]
                if rule.mode == REUSE:
                    filled = slots = slots - min(chunk, dead[request])
                if rule.most_slots > 0 and offset[request] > 0:
                    slots = min(done + chunk, rule.most_slots)
                    release(limits, blocks, full, state, request, slots)
            more = in_windows = 0
            if slots > held[request] * block_size:
                more = blocks_for(slots, block_size) - held[request]
            need = full * more
            if groups is not None:
                in_windows = windowed(groups, done, chunk, block_size)
                need += in_windows - behind[request]
            while need > counts[FREE] and count > place:
                count -= 1
                victim = running[count]
                if rule is not None:
                    offset[victim] = 0
                    dead[victim] = 0
                counts[FREE] += _let_go(groups, blocks, full, state, victim)
                _preempt(counts, queue, computed, held, preemptions, victim)
            if count == place:
                break
            if groups is not None:
                behind[request] = in_windows
            if blocks is not None:
                if groups is not None:
                    slide(blocks, groups, request, done, chunk, block_size)
                take(blocks, request, held[request], held[request] + more)
            held[request] += more
            counts[FREE] -= need
            tokens[place] = chunk
            budget -= chunk
            kv_tokens += filled
            if chunk == 1 and done >= prompt[request]:
                decodes += 1
            if blocks is not None and prefilling[request] == 1:
                _remember(blocks, prompt[request], request, done, done + chunk, block_size)
            if rule is not None:
                dead[request] -= done + chunk - offset[request] - filled
                offset[request] = done + chunk - filled
            place += 1
        for rest in range(place, count):
            tokens[rest] = 0
        # who waits, in order
        if count == before:
            while budget > 0 and counts[HEAD] < counts[TAIL] and count < limits.max_seqs:
                request = queue[counts[HEAD]]
                hits = free_hits = 0
                if blocks is not None:
                    most = hashed(blocks, request, prompt[request], block_size)
                    hits, free_hits = cached(blocks, request, min(most, (known[request] - 1) // block_size))
                found = hits * block_size
                chunk = first_chunk(limits, known[request] - found, budget)
                if chunk == 0:
                    break
                whole = known[request] if limits.reserve_full_input == 1 else found + chunk
                need = blocks_for(whole, block_size)
                more = blocks_for(found + chunk, block_size)
                in_windows = 0
                if groups is not None:
                    need = most_held(groups, whole, limits.max_tokens, block_size)
                    in_windows = windowed(groups, 0, chunk, block_size)
                if not fits(limits, counts[FREE], need - hits + free_hits, count):
                    counts[BLOCKED] += 1
                    break
                if blocks is not None:
                    open_row(blocks, request)
                    share(blocks, state, request, hits, block_size)
                    if groups is not None:
                        slide(blocks, groups, request, 0, chunk, block_size)
                    take(blocks, request, hits, more)
                if groups is not None:
                    behind[request] = in_windows
                counts[FREE] -= full * (more - hits) + free_hits + in_windows
                begin(counts, clock, computed, held, prefilling, scheduled, request, found, more)
                if blocks is not None:
                    _remember(blocks, prompt[request], request, found, found + chunk, block_size)
                running[count] = request
                tokens[count] = chunk
                count += 1
                budget -= chunk
                kv_tokens += found + chunk
                if chunk == 1 and found >= prompt[request]:  # resumed, its whole prompt found
                    decodes += 1
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
        # tokens computed; who has all gives its blocks back first: what it shared, others may evict
        for place in range(count):
            request = running[place]
            computed[request] += tokens[place]
            if computed[request] + 1 == prompt[request] + output[request]:
                counts[FREE] += _let_go(groups, blocks, full, state, request)
        if rule is not None:
            seconds += _evictions(requests, limits, costs, rule, blocks, full, state)
        clock[NOW] += seconds
        clock[BUSY] += seconds
        # first and last tokens
        stay = 0
        for place in range(count):
            request = running[place]
            if computed[request] == known[request]:
                known[request] += 1
                prefilling[request] = 0
                if first_token[request] != first_token[request]:
                    first_token[request] = clock[NOW]
                if known[request] == prompt[request] + output[request]:
                    end(counts, clock, finish, status, request)
                    continue
            running[stay] = request
            stay += 1
        counts[RUNNING] = stay


@njit(cache=True, nogil=True)
def _let_go(groups, blocks, full, state, request):
    """Take all blocks back from a request that stops running; return how many that frees."""
    freed = full * state.held[request]
    if groups is not None:
        freed += state.behind[request]
    if blocks is not None:
        freed = give(blocks, request, 0, state.held[request])
        if groups is not None:
            freed += leave(blocks, groups, request)
        close_row(blocks, request)
    return freed


@njit(inline="always")
def _preempt(counts, queue, computed, held, preemptions, victim):
    """Put a request back to the head of the queue, to be computed again from its first token."""
    held[victim] = 0
    computed[victim] = 0
    counts[HEAD] -= 1
    queue[counts[HEAD]] = victim
    preemptions[victim] += 1
    counts[PREEMPTIONS] += 1


@njit(cache=True, nogil=True)
def _remember(blocks, prompt, request, before, after, block_size):
    """Let the blocks that computing these tokens fills be found by their hashes."""
    most = hashed(blocks, request, prompt, block_size)
    if before // block_size < most:
        remember(blocks, request, before // block_size, min(after // block_size, most))


@njit(cache=True, nogil=True)
def _evictions(requests, limits, costs, rule, blocks, full, state):
    """Let the rule act on the requests that get a token now and go on; return the copies' seconds."""
    running, tokens, known, prefilling = state.running, state.tokens, state.known, state.prefilling
    prompt, output, offset, dead = requests.prompt, requests.output, state.offset, state.dead
    seconds = 0.0
    for place in range(state.counts[RUNNING]):
        request = running[place]
        computed = state.computed[request]
        if computed < known[request] or computed + 1 == prompt[request] + output[request]:
            continue
        budget = rule.budget + rule.buffer + (prompt[request] if rule.protect_prompt == 1 else 0)
        over = rule.budget > 0 and computed - offset[request] - dead[request] >= budget
        if prefilling[request] == 1 or over:
            moved = evict(requests, limits, rule, blocks, full, state, request, computed, tokens[place])
            if moved > 0:
                seconds += costs.copy_event + costs.copy_token * moved
    return seconds


@njit(cache=True, nogil=True)
def _sample(requests, rule, blocks, state):
    filled = dead = 0
    for place in range(state.counts[RUNNING]):
        request = state.running[place]
        filled += state.computed[request]
        if rule is not None:
            filled -= state.offset[request]
            dead += state.dead[request]
    pages = 0
    if blocks is not None:
        pages = blocks.cursor[PAGES]
    return sample(requests, state, state.counts[RUNNING], filled, dead, pages)
