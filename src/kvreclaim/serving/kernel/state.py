"""What the kernel reads and keeps, as structures of arrays: about 70 bytes a request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Times = NDArray[np.float64]

# Places in State.counts: scalars that outlive a call of the kernel.
(
    ARRIVED,  # requests that arrived, refused ones included
    HEAD,  # first place of the waiting queue
    TAIL,  # one past its last place
    RUNNING,  # requests that run
    FREE,  # free blocks
    STEPS,  # steps done
    DONE,  # requests finished or refused
    PREEMPTIONS,
    EVICTIONS,
    BLOCKS_FREED,  # by evictions
    MOVED,  # tokens that evictions copied
    PEAK_RUNNING,
    PEAK_WAITING,
    PEAK_BLOCKS,  # most blocks held after the allocations of a step
    SAMPLES,  # rows of State.samples that are filled
    SAMPLED,  # samples taken in all
    REFUSED,
    SHORT_STEPS,  # steps of the aggregated path
    TOKENS,  # computed, recomputed ones included
    BLOCKED,  # steps that admitted fewer because blocks lacked
    HIT_TOKENS,  # found in the pool at admissions, and not computed
    MORE,  # 1 while later requests of the trace are not in the arrays yet
    COUNTS,
) = range(23)

# Places in State.clock.
NOW, INTERVAL, BUSY, CLOCKS = range(4)

# Columns of State.samples.
(S_TIME, S_RUNNING, S_WAITING, S_FREE, S_FILLED, S_DEAD, S_PAGES, S_COLUMNS) = range(8)

# State.status of a request.
PENDING, FINISHED, REFUSED_REQUEST = range(3)


class Requests(NamedTuple):
    """The trace: arrival in seconds, prompt and output in tokens."""

    arrival: Times
    prompt: Ints
    output: Ints


class Limits(NamedTuple):
    """A pool and a scheduler's limits; what is yes or no is 1 or 0."""

    blocks: int
    block_size: int
    max_seqs: int
    max_tokens: int
    watermark: int
    reserve_full_input: int
    chunked_prefill: int


class Costs(NamedTuple):
    """Seconds of a step: base + per decode + per KV token + per prefill token + copies."""

    base: float
    decode: float
    kv_token: float
    prefill_token: float
    copy_event: float
    copy_token: float


class Rule(NamedTuple):
    """When requests lose KV pairs, and what that gives back (see `kernel.evict`).

    By the slots filled at the end of a prefill, `left_at` says how many tokens survive it and `freed_at` how
    many whole blocks die (for mode FREE_BLOCKS); both are empty where prefills evict nothing. While decoding
    the budget stays of `budget` + `buffer` slots (0: never), past the prompt if `protect_prompt`; if
    `passing`, only where the tokens decoded pass a multiple of the buffer, as R-KV does. `most_slots` are
    reserved ever after an eviction (0: those filled). `mode` is one of MASK to REUSE; `dying` says
    where what dies while decoding lies (for mode FREE_BLOCKS): SCATTERED to WHOLE, past `sinks` first slots.
    """

    left_at: Ints
    freed_at: Ints
    budget: int
    buffer: int
    passing: int
    protect_prompt: int
    most_slots: int
    mode: int
    dying: int
    sinks: int


MASK, FREE_BLOCKS, PACK, REUSE = range(4)
SCATTERED, BEFORE_WINDOW, WHOLE = range(3)


class State(NamedTuple):
    """All that changes: scalars, the queues, and each request's progress and times.

    `known` tokens of a request are its prompt and what it generated; `computed` of them have KV pairs,
    `offset` of which hold no slot of their own; `dead` slots are held and hold no survivor. `held` blocks are
    in its table, or in that of each group of layers that sees all tokens; `behind` windows lie those of the
    other groups, in sum. `since` and `link` belong to the aggregated path.
    """

    counts: NDArray[np.int64]
    clock: Times
    queue: Ints
    running: Ints
    tokens: Ints
    known: Ints
    computed: Ints
    held: Ints
    behind: Ints
    offset: Ints
    dead: Ints
    prefilling: NDArray[np.uint8]
    since: Ints
    link: Ints
    status: NDArray[np.uint8]
    preemptions: NDArray[np.uint16]
    scheduled: Times
    first_token: Times
    finish: Times
    samples: NDArray[np.float64]


def new_state(
    requests: Requests, limits: Limits, *, evicting: bool, grouped: bool, interval: float, samples: int
) -> State:
    """Return the state before the first request; arrays for evictions or groups are empty without them."""
    count = requests.arrival.size
    counts = np.zeros(COUNTS, np.int64)
    counts[FREE] = limits.blocks
    clock = np.zeros(CLOCKS)
    clock[INTERVAL] = interval
    places = min(limits.max_seqs, count) + 1
    evicted = count if evicting else 0
    return State(
        counts=counts,
        clock=clock,
        queue=np.empty(count, np.int32),
        running=np.empty(places, np.int32),
        tokens=np.zeros(places, np.int32),
        known=requests.prompt.copy(),
        computed=np.zeros(count, np.int32),
        held=np.zeros(count, np.int32),
        behind=np.zeros(count if grouped else 0, np.int32),
        offset=np.zeros(evicted, np.int32),
        dead=np.zeros(evicted, np.int32),
        prefilling=np.ones(count, np.uint8),
        since=np.zeros(count, np.int32),
        link=np.zeros(count, np.int32),
        status=np.zeros(count, np.uint8),
        preemptions=np.zeros(count, np.uint16),
        scheduled=np.full(count, np.nan),
        first_token=np.full(count, np.nan),
        finish=np.full(count, np.nan),
        samples=np.empty((samples, S_COLUMNS)),
    )
