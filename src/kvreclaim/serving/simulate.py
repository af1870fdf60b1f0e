"""Traffic through a scheduler and a pool: the kernel, driven from plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from kvreclaim.serving.kernel.blocks import PEAK_PAGES, new_blocks
from kvreclaim.serving.kernel.steps import ALL_DONE, HUNGRY
from kvreclaim.serving.kernel.windows import Groups
from kvreclaim.serving.memory import Memory
from kvreclaim.serving.outcome import ByRequest, Simulation, Totals
from kvreclaim.serving.steptime import StepTime
from kvreclaim.serving.trace import WINDOW, Trace, Traffic
from kvreclaim.serving.window import Ended, Window, check_samples
from kvreclaim.validate import positive_int

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
    trace: Traffic,
    settings: SchedulerSettings,
    step_time: StepTime,
    eviction: Eviction | None = None,
    copies: Copies | None = None,
    *,
    memory: Memory | None = None,
    interval: float = math.inf,
    aggregate: bool = True,
    window: int = WINDOW,
) -> Simulation:
    """Run a trace, iteration by iteration, by the rules of `kvreclaim.scheduler`.

    Parameters
    ----------
    trace
        The requests. Held in memory, it is answered request by request; stored, in sum.
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
    window
        Requests of the trace that are taken in at a time; the numbers do not depend on it.

    Raises
    ------
    InputError
        If the interval is not positive or makes too many samples, or the memory can't be combined with the
        eviction or the trace.
    """
    if not interval > 0:
        raise InputError(f"the interval is {interval}: pass seconds greater than 0")
    check_samples(trace.span / interval)
    place = memory or Memory()
    place.check(trace, settings, evicting=eviction is not None)
    run = _Run(trace, settings, step_time, eviction, copies or Copies(), place, aggregate)
    totals = Totals()
    by_request = ByRequest.of(trace.requests) if trace.in_memory else None
    for ended in run.through(trace.windows(positive_int(window, "window")), interval):
        totals.add(ended)
        if by_request is not None:
            by_request.add(ended)
    return run.outcome(totals, by_request)


class _Run:
    """One simulation: what stays the same, and the window that moves over the trace."""

    def __init__(
        self,
        trace: Traffic,
        settings: SchedulerSettings,
        step_time: StepTime,
        eviction: Eviction | None,
        copies: Copies,
        memory: Memory,
        aggregate: bool,
    ) -> None:
        self._trace, self._settings, self._memory = trace, settings, memory
        self._limits = _limits(settings)
        self._costs = kernel.Costs(*step_time.constants, float(copies.event), float(copies.token))
        prompt, output = trace.longest
        self._seconds = 0.0
        longest = min(prompt + output, settings.blocks * settings.block_size)  # more is refused
        self._rule = None if eviction is None else eviction.rule(longest, settings.block_size)
        self._groups = memory.groups
        simple = self._groups is None and not memory.by_block and _grows(self._rule)
        self._ring = _ring(output) if aggregate and simple else _NO_RING
        _compile(self._rule is not None, memory.by_block, self._groups is not None)

    def through(self, parts: Iterator[Trace], interval: float) -> Iterator[Ended]:
        """Simulate the parts of the trace; yield the requests that have ended when they leave the window."""
        self._window = self._first(next(parts), interval)
        for following in parts:
            self._until(HUNGRY)
            begun = perf_counter()
            ended = self._window.feed(following, self._refused(following))
            self._seconds += perf_counter() - begun
            yield ended
        self._window.last()
        self._until(ALL_DONE)
        yield self._window.rest()

    def outcome(self, totals: Totals, by_request: ByRequest | None) -> Simulation:
        """Return what came of it."""
        state, blocks = self._window.state, self._window.blocks
        pages = None if blocks is None or not blocks.per_page else int(blocks.cursor[PEAK_PAGES])
        return Simulation(
            trace=self._trace,
            settings=self._settings,
            counts=state.counts,
            clock=state.clock,
            samples=state.samples[: state.counts[places.SAMPLES]],
            totals=totals,
            by_request=by_request,
            simulate_seconds=self._seconds,
            peak_pages=pages,
        )

    def _first(self, part: Trace, interval: float) -> Window:
        return Window(
            part,
            self._refused(part),
            self._limits,
            evicting=self._rule is not None,
            grouped=self._groups is not None,
            interval=float(interval),
            samples=_ROWS if math.isfinite(interval) else 0,
            blocks=self._memory.blocks(self._trace, part, self._settings),
        )

    def _until(self, answer: int) -> None:
        """Run until the kernel answers this; it may ask for more room for samples before."""
        window, begun = self._window, perf_counter()
        while True:
            found = kernel.run(
                window.requests,
                self._limits,
                self._costs,
                self._rule,
                window.blocks,
                self._groups,
                window.state,
                self._ring,
            )
            if found == answer:
                break
            window.longer_samples()
        self._seconds += perf_counter() - begun

    def _refused(self, part: Trace) -> NDArray[np.int64]:
        """Return the places of the requests that could not finish even alone (see `Scheduler.add`)."""
        tokens = part.prompt.astype(np.int64) + part.output - 1
        too_long = self._memory.most_blocks(tokens, self._settings) > self._settings.blocks
        if not self._settings.chunked_prefill:
            too_long |= tokens > self._settings.max_num_batched_tokens
        return np.flatnonzero(too_long)


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


def _grows(rule: kernel.Rule | None) -> bool:
    """Whether every decode fills a new slot: nothing is evicted while decoding, no slot used again."""
    return rule is None or (rule.budget == 0 and rule.mode != places.REUSE)


def _ring(longest: int) -> NDArray[np.int32]:
    size = 1 << longest.bit_length()
    return np.full(size if size <= _LONGEST_RING else 0, -1, np.int32)


@lru_cache
def _compile(evicting: bool, by_block: bool, grouped: bool) -> None:
    """Compile the kernel for these kinds of arguments, or load it: not what a simulation takes."""
    requests = kernel.Requests(np.zeros(1), np.ones(1, np.int32), np.ones(1, np.int32))
    limits = kernel.Limits(1, 1, 1, 1, 0, 1, 1)
    rule = Eviction("mask", budget=1, buffer=1).rule(1, 1) if evicting else None
    blocks = new_blocks(1, 1, 1, 1) if by_block else None
    groups = Groups(1, np.zeros(0, np.int32)) if grouped else None
    state = kernel.new_state(
        requests, limits, evicting=evicting, grouped=grouped, interval=math.inf, samples=0
    )
    kernel.run(requests, limits, kernel.Costs(1.0, *[0.0] * 5), rule, blocks, groups, state, _NO_RING)
