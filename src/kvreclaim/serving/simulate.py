"""Traffic through a scheduler and a pool: the kernel, driven from plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.scheduling import SchedulerSettings
from kvreclaim.serving import kernel
from kvreclaim.serving.eviction import Eviction
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.kernel.identity import PEAK_PAGES, new_blocks
from kvreclaim.serving.memory import Memory
from kvreclaim.serving.outcome import Simulation
from kvreclaim.serving.steptime import StepTime
from kvreclaim.serving.trace import Trace

_LONGEST_RING = 1 << 20  # steps: outputs beyond go the exact path
_ROWS = 4096
_NO_RING = np.empty(0, np.int32)


@dataclass(frozen=True)
class Copies:
    """What the copies of a compaction add to their step.

    Parameters
    ----------
    event
        Seconds of each compaction.
    token
        Seconds of each token moved, all layers.
    """

    event: float = 0.0
    token: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.event < math.inf and 0 <= self.token < math.inf):
            raise InputError(f"copies cost {self.event} and {self.token}: pass seconds, at least 0")


def simulate(
    trace: Trace,
    settings: SchedulerSettings,
    step_time: StepTime,
    eviction: Eviction | None = None,
    copies: Copies | None = None,
    *,
    memory: Memory | None = None,
    interval: float = math.inf,
    aggregate: bool = True,
) -> Simulation:
    """Run a trace, iteration by iteration, by the rules of `kvreclaim.scheduler`.

    Parameters
    ----------
    trace
        The requests.
    settings
        The pool and the scheduler's limits.
    step_time
        Seconds of a step.
    eviction
        When requests lose KV pairs, and what that gives back; None: never.
    copies
        Seconds that compactions add.
    memory
        What is particular about the pool: shared prefixes, pages, groups of layers; None: nothing.
    interval
        Seconds between samples of what runs, waits and is free, as the step around each leaves it.
    aggregate
        Use the aggregated path where it is right; its numbers are those of the exact path.

    Raises
    ------
    InputError
        If the interval is not positive, or the memory can't be combined with the eviction or the trace.
    """
    if not interval > 0:
        raise InputError(f"the interval is {interval}: pass seconds greater than 0")
    requests = kernel.Requests(trace.arrival, trace.prompt, trace.output)
    limits = _limits(settings)
    prices = copies or Copies()
    costs = kernel.Costs(*step_time.constants, float(prices.event), float(prices.token))
    longest = int(trace.prompt.max()) + int(trace.output.max())
    rule = None if eviction is None else eviction.rule(longest, settings.block_size)
    rows = _ROWS if math.isfinite(interval) else 0
    state = kernel.new_state(
        requests, limits, evicting=rule is not None, interval=float(interval), samples=rows
    )
    place = memory or Memory()
    place.check(trace, settings, evicting=rule is not None)
    blocks, windows = place.blocks(trace, settings), place.windows
    refused = _refused(trace, settings, place)
    state.status[refused] = places.REFUSED_REQUEST
    simple = rule is None and blocks is None and windows is None
    ring = _ring(trace) if aggregate and simple else _NO_RING
    _compile(rule is not None, blocks is not None, windows is not None)
    begun = perf_counter()
    while not kernel.run(requests, limits, costs, rule, blocks, windows, state, ring):
        state = state._replace(samples=_longer(state.samples))
    pages = None if blocks is None or not place.page_blocks else int(blocks.cursor[PEAK_PAGES])
    return Simulation(trace, settings, state, refused, perf_counter() - begun, pages)


def _limits(settings: SchedulerSettings) -> kernel.Limits:
    return kernel.Limits(
        blocks=settings.blocks,
        block_size=settings.block_size,
        max_seqs=settings.max_num_seqs,
        max_tokens=settings.max_num_batched_tokens,
        watermark=settings.watermark_blocks,
        reserve_full_input=int(settings.reserve_full_input),
        chunked_prefill=int(settings.chunked_prefill),
    )


def _refused(trace: Trace, settings: SchedulerSettings, memory: Memory) -> NDArray[np.int64]:
    """Return the places of the requests that could not finish even alone (see `Scheduler.add`)."""
    tokens = trace.prompt.astype(np.int64) + trace.output - 1
    too_long = memory.most_blocks(tokens, settings) > settings.blocks
    if not settings.chunked_prefill:
        too_long |= tokens > settings.max_num_batched_tokens
    return np.flatnonzero(too_long)


def _ring(trace: Trace) -> NDArray[np.int32]:
    size = 1 << int(trace.output.max()).bit_length()
    return np.full(size if size <= _LONGEST_RING else 0, -1, np.int32)


def _longer(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    longer = np.empty((2 * len(samples), samples.shape[1]))
    longer[: len(samples)] = samples
    return longer


@lru_cache
def _compile(evicting: bool, by_block: bool, windowed: bool) -> None:
    """Compile the kernel for these kinds of arguments, or load it: not what a simulation takes."""
    requests = kernel.Requests(np.zeros(1), np.ones(1, np.int32), np.ones(1, np.int32))
    limits = kernel.Limits(1, 1, 1, 1, 0, 1, 1)
    rule = Eviction("mask", budget=1, buffer=1).rule(1, 1) if evicting else None
    blocks = new_blocks(1, 1, 1, 1) if by_block else None
    windows = np.zeros(1, np.int32) if windowed else None
    state = kernel.new_state(requests, limits, evicting=evicting, interval=math.inf, samples=0)
    kernel.run(requests, limits, kernel.Costs(1.0, *[0.0] * 5), rule, blocks, windows, state, _NO_RING)
