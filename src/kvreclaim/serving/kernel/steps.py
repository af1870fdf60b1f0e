"""What both paths of the kernel share: arrivals, samples, admission, and how a request ends.

Functions of every step take the arrays that they touch, and are inlined: passing the whole state, or reading
an array out of it, costs more than most of them do.
"""

from __future__ import annotations

from numba import njit

from kvreclaim.serving.kernel.state import (
    ARRIVED,
    DONE,
    FINISHED,
    FREE,
    HEAD,
    INTERVAL,
    MORE,
    NOW,
    PEAK_BLOCKS,
    PEAK_RUNNING,
    PEAK_WAITING,
    REFUSED,
    REFUSED_REQUEST,
    S_DEAD,
    S_FILLED,
    S_FREE,
    S_PAGES,
    S_RUNNING,
    S_TIME,
    S_WAITING,
    SAMPLED,
    SAMPLES,
    TAIL,
)

# What a path answers: all requests are done; the rows for samples are full; the last request in the arrays
# has arrived and more are to come; blocks lack; blocks abound. `run` passes on the first three.
ALL_DONE, ROWS_FULL, HUNGRY, SHORT, AMPLE = range(5)
WRITTEN = -1


@njit(inline="always")
def blocks_for(slots, block_size):
    """Return the blocks that hold so many slots."""
    return (slots + block_size - 1) // block_size


@njit(cache=True, nogil=True)
def arrive(requests, state, until):
    """Queue the requests that arrive up to a time; those refused before the run are passed over."""
    counts = state.counts
    place, tail = counts[ARRIVED], counts[TAIL]
    while place < requests.arrival.size and requests.arrival[place] <= until:
        if state.status[place] == REFUSED_REQUEST:
            counts[DONE] += 1
            counts[REFUSED] += 1
        else:
            state.queue[tail] = place
            tail += 1
        place += 1
    counts[ARRIVED], counts[TAIL] = place, tail


@njit(inline="always")
def due(counts, clock, arrival):
    """Whether a request has arrived since the queue was last filled."""
    return counts[ARRIVED] < arrival.size and arrival[counts[ARRIVED]] <= clock[NOW]


@njit(inline="always")
def hungry(counts, arrival):
    """Whether the next arrival is not in the arrays yet: nothing can be decided before it is."""
    return counts[ARRIVED] == arrival.size and counts[MORE] == 1


@njit(inline="always")
def next_sample(counts, clock):
    """Return the time of the next sample; the first is taken one interval after the start."""
    return (counts[SAMPLED] + 1) * clock[INTERVAL]


@njit(cache=True, nogil=True)
def sample(requests, state, running, filled, dead, pages):
    """Write the samples that are due, of what holds since the last step; answer as a path, or `WRITTEN`."""
    counts, clock = state.counts, state.clock
    while next_sample(counts, clock) <= clock[NOW]:
        if counts[SAMPLES] == state.samples.shape[0]:
            return ROWS_FULL
        time = next_sample(counts, clock)
        arrive(requests, state, time)
        if hungry(counts, requests.arrival):
            return HUNGRY
        row = state.samples[counts[SAMPLES]]
        row[S_TIME] = time
        row[S_RUNNING] = running
        row[S_WAITING] = counts[TAIL] - counts[HEAD]
        row[S_FREE] = counts[FREE]
        row[S_FILLED] = filled
        row[S_DEAD] = dead
        row[S_PAGES] = pages
        counts[SAMPLES] += 1
        counts[SAMPLED] += 1
    return WRITTEN


@njit(inline="always")
def count_peaks(counts, blocks, running):
    """Raise the peaks to what holds while the model runs."""
    if running > counts[PEAK_RUNNING]:
        counts[PEAK_RUNNING] = running
    if counts[TAIL] - counts[HEAD] > counts[PEAK_WAITING]:
        counts[PEAK_WAITING] = counts[TAIL] - counts[HEAD]
    if blocks - counts[FREE] > counts[PEAK_BLOCKS]:
        counts[PEAK_BLOCKS] = blocks - counts[FREE]


@njit(inline="always")
def first_chunk(limits, pending, budget):
    """Return the tokens that the head of the queue would compute first; 0 where they may not be split."""
    tokens = min(pending, budget)
    return 0 if tokens < pending and limits.chunked_prefill == 0 else tokens


@njit(inline="always")
def fits(limits, free, blocks, running):
    """Whether so many blocks can be given to the head of the queue."""
    return blocks + (limits.watermark if running > 0 else 0) <= free


@njit(inline="always")
def begin(counts, clock, computed, held, prefilling, scheduled, request, found, blocks):
    """Take the head of the queue in, with tokens found in the pool and blocks for its first chunk."""
    counts[HEAD] += 1
    held[request] = blocks
    computed[request] = found
    prefilling[request] = 1
    if scheduled[request] != scheduled[request]:
        scheduled[request] = clock[NOW]


@njit(inline="always")
def end(counts, clock, finish, status, request):
    """End a request."""
    counts[DONE] += 1
    finish[request] = clock[NOW]
    status[request] = FINISHED
