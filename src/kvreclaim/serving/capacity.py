"""The highest load of a trace that meets a latency target, and what keeps a higher one from meeting it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kvreclaim.errors import InputError
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.outcome import Simulation
from kvreclaim.serving.scenario import Scenario
from kvreclaim.serving.setup import Setup
from kvreclaim.serving.trace import LATEST, Traffic

LOWEST, HIGHEST = -16, 20  # powers of two, requests a second: one in 18 hours, a million in a second
_PARTS = 7  # halvings of an octave: to .6 %
FOUND, NO_LOAD, ANY_LOAD = "found", "no load", "any load"
POOL, SEATS, COMPUTE, NOTHING = "pool", "max_num_seqs", "compute", "nothing"


@dataclass(frozen=True)
class Target:
    """What most requests may wait: 99th percentiles in seconds, None where it does not matter."""

    ttft_p99: float | None = None
    latency_p99: float | None = None

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.ttft_p99, self.latency_p99) if limit is not None]
        if not limits or not all(0 < limit < math.inf for limit in limits):
            raise InputError("pass a latency target: --ttft-p99 or --latency-p99, seconds greater than 0")

    def met(self, simulation: Simulation) -> bool:
        """Whether a simulation stays within it; never where a request was refused."""
        totals = simulation.totals
        pairs = ((self.ttft_p99, totals.ttft), (self.latency_p99, totals.latency))
        waits = [(limit, *waited.some(99)) for limit, waited in pairs if limit is not None]
        return not totals.refused and all(value is not None and value <= limit for limit, value in waits)


@dataclass(frozen=True)
class Search:
    """What a search over powers of two found.

    Attributes
    ----------
    outcome
        ``found``; ``no load`` where even the lowest misses; ``any load`` where the highest meets it.
    met, missed
        Exponents: the highest that was tried and meets it, and the one above that misses it; None where there
        is none.
    """

    outcome: str
    met: float | None
    missed: float | None


def search(met: Callable[[float], bool], start: int, lowest: int = LOWEST) -> Search:
    """Find where a target that low loads meet begins to be missed, to less than 1 %.

    From a whole exponent on, doubled or halved until it is met at one and missed at the next; then the octave
    is halved. Where higher loads do not always wait longer, what is found is one such border: met there, and
    missed at the next load tried above, less than 1 % away.

    Parameters
    ----------
    met
        Whether the target is met at two to the power of an exponent.
    start
        The exponent to begin with.
    lowest
        The least that is tried.
    """
    if met(HIGHEST):
        return Search(ANY_LOAD, HIGHEST, None)
    low = high = float(max(start, lowest))
    if met(low):
        while high == low:
            high += 1
            low = high if high < HIGHEST and met(high) else low
    else:
        while low == high:
            low -= 1
            if low < lowest:
                return Search(NO_LOAD, None, lowest)
            high = high if met(low) else low
    for _ in range(_PARTS):
        middle = (low + high) / 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return Search(FOUND, low, high)


@dataclass(frozen=True)
class Capacity:
    """The load that a scenario carries within a target.

    Attributes
    ----------
    outcome
        As of `Search`.
    load
        Times the trace's own arrivals; None where none or any meets the target.
    rate
        The same in requests a second; None also where all requests arrive at once.
    binds
        What keeps the next load tried, less than 1 % higher, from meeting it: with room for all in the pool
        (``pool``), or for all at once (``max_num_seqs``), or both (``pool and max_num_seqs``) it would be
        met; else ``compute``. ``nothing`` where any load meets the target.
    missed
        The simulation of that load, or of the highest that was tried.
    exponent
        Where to begin the search of a similar scenario.
    """

    outcome: str
    load: float | None
    rate: float | None
    binds: str
    missed: Simulation
    exponent: int


def capacity(scenario: Scenario, target: Target, start: int = 0) -> Capacity:
    """Return the highest load that meets a target (see `search`); the scenario's own load does not matter.

    Parameters
    ----------
    scenario
        What is simulated.
    target
        What has to be met.
    start
        Power of two, requests a second, with which to begin.
    """
    setup, loads = scenario.setup(), _Loads.of(scenario)
    if loads.own is None:  # all at once, however fast
        done = setup.run(loads.trace)
        outcome = ANY_LOAD if target.met(done) else NO_LOAD
        return Capacity(outcome, None, None, _binds(setup, loads.trace, target, outcome), done, start)
    last: dict[bool, Simulation] = {}

    def met(exponent: float) -> bool:
        done = setup.run(loads.at(exponent))
        last[target.met(done)] = done
        return done is last.get(True)

    found = search(met, start, loads.lowest)
    beyond, missed = (HIGHEST, last[True]) if found.missed is None else (found.missed, last[False])
    binds = _binds(setup, loads.at(beyond), target, found.outcome)
    if found.outcome != FOUND or found.met is None:
        return Capacity(found.outcome, None, None, binds, missed, start)
    rate = 2.0**found.met
    return Capacity(FOUND, rate / loads.own, rate, binds, missed, math.floor(found.met))


@dataclass(frozen=True)
class _Loads:
    """A trace at loads that are powers of two, requests a second.

    Attributes
    ----------
    trace
        With its own arrivals.
    own
        Their requests a second; None where all arrive at once.
    """

    trace: Traffic
    own: float | None

    @classmethod
    def of(cls, scenario: Scenario) -> _Loads:
        """Return those of a scenario, whose own load does not matter."""
        trace = replace(scenario, load=1.0).read()
        return cls(trace, (trace.requests - 1) / trace.span if trace.span else None)

    def at(self, exponent: float) -> Traffic:
        """Return the trace at a load."""
        return self.trace if self.own is None else self.trace.faster(2.0**exponent / self.own)

    @property
    def lowest(self) -> int:
        """The lowest that is tried: of very many requests, one whose last still arrives in time."""
        return max(LOWEST, math.ceil(math.log2(self.trace.requests / LATEST)))


def pool_binds_from(scenario: Scenario, start: int = 0) -> float | None:
    """Return the load, times the trace's own, from which on requests wait for blocks; None where never.

    0 where they do at the lowest load that is tried.
    """
    setup, loads = scenario.setup(), _Loads.of(scenario)
    if loads.own is None:
        return 0.0 if setup.run(loads.trace).pool_binding else None
    found = search(lambda exponent: not setup.run(loads.at(exponent)).pool_binding, start, loads.lowest)
    if found.outcome == ANY_LOAD or found.missed is None:
        return None
    return 0.0 if found.outcome == NO_LOAD else 2.0**found.missed / loads.own


def limit(scenario: Scenario, simulation: Simulation) -> str:
    """Return what a simulation runs into first: pool, max_num_seqs, compute, or nothing."""
    if simulation.pool_binding:
        return POOL
    if simulation.count(places.PEAK_RUNNING) >= scenario.max_num_seqs:
        return SEATS
    busy = simulation.summary()["busy"]
    return COMPUTE if busy is not None and busy > _BUSY else NOTHING


_BUSY = 0.98
_SEATS = 4096  # requests at once that are taken for no limit


def _binds(setup: Setup, trace: Traffic, target: Target, outcome: str) -> str:
    """Return what would have to be larger for a load that misses the target to meet it."""
    if outcome == ANY_LOAD:
        return NOTHING
    settings = setup.settings
    seats = max(settings.max_num_seqs, min(trace.requests, _SEATS))
    room = int(setup.memory.most_blocks(np.array([sum(trace.longest)]), settings)[0])
    blocks = max(settings.blocks, room * min(seats, trace.requests))
    for name, larger in (
        (POOL, replace(settings, blocks=blocks)),
        (SEATS, replace(settings, max_num_seqs=seats)),
        (f"{POOL} and {SEATS}", replace(settings, blocks=blocks, max_num_seqs=seats)),
    ):
        if target.met(replace(setup, settings=larger).run(trace)):
            return name
    return COMPUTE
