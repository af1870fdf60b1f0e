"""How much traffic a deployment carries within a latency target, with and without giving KV memory back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvreclaim.serving.capacity import Capacity, Target, capacity, limit, pool_binds_from
from kvreclaim.serving.eviction import MODES, Eviction
from kvreclaim.serving.hardware import GIB
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.memory import Memory
from kvreclaim.serving.outcome import Simulation
from kvreclaim.serving.scenario import Scenario
from kvreclaim.serving.simulate import simulate
from kvreclaim.serving.steptime import StepTime
from kvreclaim.serving.trace import Trace

METHODS = ("streaming-llm", "per-head")
FULL, BASELINES = "full cache", ("fp8", "int8")
NEVER = "never"


@dataclass(frozen=True)
class Variant:
    """One way to run the same traffic.

    Attributes
    ----------
    name, mode
        The method or element type; what is done with dead slots ("" for baselines).
    scenario
        At the load given.
    at_load
        Its simulation.
    blocks_at_end
        That a request of the trace's mean size holds in its last step, alone.
    gib_given_back
        GiB that this is less than with the full cache.
    carried
        The load that meets the target.
    pool_binds_from
        Times the trace's own arrivals from which on requests wait for blocks: None where never, 0 where at
        any load. Looked for where nothing is evicted; else None.
    """

    name: str
    mode: str
    scenario: Scenario
    at_load: Simulation
    blocks_at_end: float
    gib_given_back: float
    carried: Capacity
    pool_binds_from: float | None

    @property
    def title(self) -> str:
        """Its name and mode."""
        return f"{self.name}, {self.mode}" if self.mode else self.name

    @property
    def binds(self) -> str:
        """What limits it at the load given: pool, max_num_seqs, compute, or nothing."""
        return limit(self.scenario, self.at_load)

    def to_dict(self) -> dict[str, Any]:
        """Return it as `docs/json.md` describes it."""
        found, gpus = self.carried, self.scenario.gpus
        missed = found.missed.summary()
        return {
            "name": self.name,
            "mode": self.mode or None,
            "blocks": self.at_load.settings.blocks,
            "requests": self.at_load.trace.requests,
            "refused": self.at_load.totals.refused,
            "requests_at_once_per_gpu": self.at_load.settings.blocks / self.blocks_at_end / gpus,
            "gib_given_back_per_request": self.gib_given_back,
            "outcome": found.outcome,
            "load": found.load,
            "requests_per_second_per_gpu": None if found.rate is None else found.rate / gpus,
            "binds_at_capacity": found.binds,
            "missed_ttft_p99": missed["ttft_p99"],
            "missed_latency_p99": missed["latency_p99"],
            "pool_binds_from": self.pool_binds_from,
            "binds": self.binds,
            "peak_running": self.at_load.count(places.PEAK_RUNNING),
            "preemptions": self.at_load.count(places.PREEMPTIONS),
            "ttft_p99": self.at_load.summary()["ttft_p99"],
            "latency_p99": self.at_load.summary()["latency_p99"],
        }


def plan(scenario: Scenario, target: Target, advance: Callable[[], None] = lambda: None) -> list[Variant]:
    """Return the full cache, 8-bit caches at equal bytes, and each method in each mode.

    Parameters
    ----------
    scenario
        Model, GPU, traffic and the ratio of the methods; its own policy, masks, measured table or rule while
        decoding, if any, are further methods.
    target
        What has to be met.
    advance
        Called after each of `variants`.
    """
    found: list[Variant] = []
    start = 0
    for name, mode, varied in variants(scenario):
        alike = next((other for other in found if other.scenario.setup() == varied.setup()), None)
        if alike:  # 8-bit types have the same bytes
            found.append(replace(alike, name=name, mode=mode, scenario=varied))
        else:
            found.append(_simulated(name, mode, varied, target, start))
            start = found[0].carried.exponent
        advance()
    return found


def _simulated(name: str, mode: str, scenario: Scenario, target: Target, start: int) -> Variant:
    ends, full = (blocks_at_end(scenario, eviction) for eviction in (scenario.eviction(), None))
    carried = capacity(scenario, target, start)
    from_load = None if scenario.evicts else pool_binds_from(scenario, start)
    spared = (full - ends) * _block_bytes(scenario) / GIB
    return Variant(name, mode, scenario, scenario.run(), ends, spared, carried, from_load)


def takes_a_part(scenario: Scenario) -> bool:
    """Whether the trace has more requests than the scenario takes."""
    if not scenario.requests:
        return False
    return replace(scenario, requests=scenario.requests + 1).read().requests > scenario.read().requests


def variants(scenario: Scenario) -> Sequence[tuple[str, str, Scenario]]:
    """Return names, modes and scenarios, the full cache first."""
    plain = replace(
        scenario, policy="none", masks="", measured="", evict_while_decoding=NEVER, budget=0, buffer=0
    )
    return tuple(_variants(scenario, plain))


def _variants(scenario: Scenario, plain: Scenario) -> Iterator[tuple[str, str, Scenario]]:
    yield FULL, "", plain
    for dtype in BASELINES:
        doubled = scenario.blocks * 2 - 1 if scenario.kv_dtype == "auto" else scenario.blocks
        blocks = doubled if scenario.blocks else 0
        yield dtype, "", replace(plain, kv_dtype=dtype, blocks=blocks)
    for method in METHODS:
        for mode in MODES:
            yield method, mode, replace(plain, policy=method, mode=mode)
    decoding = scenario.evict_while_decoding
    at_prefill = scenario.policy not in {"none", *METHODS} or scenario.masks or scenario.measured
    if decoding != NEVER:
        alone = replace(plain, evict_while_decoding=decoding, budget=scenario.budget, buffer=scenario.buffer)
        for mode in MODES:
            if mode != "free":  # what dies whole depends on a policy
                yield decoding, mode, replace(alone, mode=mode)
        if scenario.policy != "none" or scenario.masks or scenario.measured:
            yield f"{_own(scenario)} + {decoding}", scenario.mode, scenario
    elif at_prefill:
        yield _own(scenario), scenario.mode, scenario


def _own(scenario: Scenario) -> str:
    return scenario.policy if scenario.policy != "none" else "as given"


def _block_bytes(scenario: Scenario) -> int:
    made = scenario.deployment()
    groups = 1 if scenario.hybrid else made.geometry.layers // made.layers_per_group
    return made.block_bytes * groups


def blocks_at_end(scenario: Scenario, eviction: Eviction | None) -> float:
    """Return the blocks that a request of the trace's mean size, alone, holds in its last step."""
    prompt, output = (max(1, round(tokens)) for tokens in scenario.read().mean)
    trace = Trace(np.zeros(1), np.array([prompt]), np.array([output + 1]))  # the last before it is gone
    settings = scenario.settings()
    ample = replace(settings, blocks=max(settings.blocks, 2 * (prompt + output) * _groups(scenario)))
    memory = Memory(group_windows=scenario.memory().group_windows)
    done = simulate(trace, ample, StepTime(1.0, 0.0, 0.0, 0.0), eviction, memory=memory, interval=1.0)
    held = ample.blocks - done.samples[:, places.S_FREE]
    last = held[held > 0]
    return float(last[-1]) if last.size else float(done.count(places.PEAK_BLOCKS))


def _groups(scenario: Scenario) -> int:
    return max(1, len(scenario.memory().group_windows))
