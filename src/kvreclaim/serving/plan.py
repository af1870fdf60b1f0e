"""How much traffic a deployment carries within a latency target, with and without giving KV memory back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvreclaim.errors import InputError
from kvreclaim.serving.eviction import MODES, Eviction
from kvreclaim.serving.hardware import GIB
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.outcome import Simulation
from kvreclaim.serving.scenario import Scenario

METHODS = ("streaming-llm", "per-head")
FULL, BASELINES = "full cache", ("fp8", "int8")
HIGHEST_LOAD = 64.0  # times the load given; beyond, none is looked for
_ROUNDS = 6  # halvings of the interval
_BUSY = 0.98


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
        """Whether a simulation stays within it; never where no request was served."""
        found = simulation.summary()
        pairs = ((self.ttft_p99, found["ttft_p99"]), (self.latency_p99, found["latency_p99"]))
        return all(limit is None or (value is not None and value <= limit) for limit, value in pairs)


@dataclass(frozen=True)
class Variant:
    """One way to run the same traffic.

    Attributes
    ----------
    name, mode
        The method or element type; what is done with dead slots ("" for baselines).
    scenario
        At the trace's own load.
    at_load
        Its simulation.
    requests_at_once
        Requests of the trace's mean size at their end that the pool holds: a closed form.
    gib_given_back
        GiB that one mean request gives back by its end, against the full cache.
    load
        Times the trace's own arrivals that meet the target; 0 where even the lowest tried does not; None past
        the highest tried.
    """

    name: str
    mode: str
    scenario: Scenario
    at_load: Simulation
    requests_at_once: float
    gib_given_back: float
    load: float | None

    @property
    def binds(self) -> str:
        """What limits it at the trace's own load: pool, max_num_seqs, compute, or nothing."""
        simulation = self.at_load
        if simulation.pool_binding:
            return "pool"
        if simulation.count(places.PEAK_RUNNING) >= self.scenario.max_num_seqs:
            return "max_num_seqs"
        busy = simulation.summary()["busy"]
        return "compute" if busy is not None and busy > _BUSY else "nothing"

    def to_dict(self) -> dict[str, Any]:
        """Return it as `docs/json.md` describes it."""
        trace = self.scenario.read()
        rate = (trace.requests - 1) / trace.span if trace.span else None
        per_gpu = None if self.load is None or rate is None else self.load * rate / self.scenario.gpus
        return {
            "name": self.name,
            "mode": self.mode or None,
            "blocks": self.at_load.settings.blocks,
            "requests_at_once_per_gpu": self.requests_at_once / self.scenario.gpus,
            "gib_given_back_per_request": self.gib_given_back,
            "load": self.load,
            "requests_per_second_per_gpu": per_gpu,
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
        Model, GPU, traffic and the ratio of the methods; its own policy, masks or measured table, if any, is
        a further method.
    target
        What has to be met.
    advance
        Called after each of `variants`.
    """
    found = []
    for name, mode, varied in variants(scenario):
        at_load = varied.run()
        eviction = varied.eviction()
        ends, full = _blocks_at_end(varied, eviction), _blocks_at_end(varied, None)
        spared = (full - ends) * _block_bytes(varied) / GIB
        capacity = at_load.settings.blocks / ends
        carried = _carried(varied, target, at_load)
        found.append(Variant(name, mode, varied, at_load, capacity, spared, carried))
        advance()
    return found


def variants(scenario: Scenario) -> Sequence[tuple[str, str, Scenario]]:
    """Return names, modes and scenarios, the full cache first."""
    plain = replace(scenario, policy="none", masks="", measured="", evict_while_decoding="never")
    return tuple(_variants(scenario, plain))


def _variants(scenario: Scenario, plain: Scenario) -> Iterator[tuple[str, str, Scenario]]:
    yield FULL, "", plain
    for dtype in BASELINES:
        doubled = scenario.blocks * 2 - 1 if scenario.kv_dtype == "auto" else scenario.blocks
        blocks = doubled if scenario.blocks else 0
        yield dtype, "", replace(plain, kv_dtype=dtype, blocks=blocks)
    own = scenario != plain and (scenario.policy not in METHODS or scenario.masks or scenario.measured)
    for method in METHODS:
        for mode in MODES:
            yield method, mode, replace(plain, policy=method, mode=mode)
    if own:
        yield scenario.policy if scenario.policy != "none" else "as given", scenario.mode, scenario


def _carried(scenario: Scenario, target: Target, at_load: Simulation) -> float | None:
    """Return the highest load that meets the target, found by halving; simulated, so to a few percent."""
    low, high = 0.0, 1.0

    def met(load: float) -> bool:
        return target.met(replace(scenario, load=scenario.load * load).run())

    higher = target.met(at_load)
    while higher:
        low, high = high, 2 * high
        if high > HIGHEST_LOAD:
            return None
        higher = met(high)
    for _ in range(_ROUNDS):
        middle = math.sqrt(low * high) if low else high / 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return low * scenario.load


def _block_bytes(scenario: Scenario) -> int:
    made = scenario.deployment()
    groups = 1 if scenario.hybrid else made.geometry.layers // made.layers_per_group
    return made.block_bytes * groups


def _blocks_at_end(scenario: Scenario, eviction: Eviction | None) -> float:
    """Return the blocks that a request of the trace's mean size holds at its end."""
    trace, size = scenario.read(), scenario.block_size
    prompt, output = map(round, trace.mean)
    slots = prompt + output - 1
    if eviction is not None:
        rule = eviction.rule(prompt, size)
        if rule.left_at.size:
            left = int(rule.left_at[prompt])
            freed = int(rule.freed_at[prompt]) * size if rule.freed_at.size else 0
            slots = {
                "mask": slots,
                "free": slots - freed,
                "pack": left + output - 1,
                "reuse": max(prompt, left + output - 1),
            }[eviction.mode]
        if rule.budget and eviction.mode == "pack":
            slots = min(slots, rule.budget + rule.buffer + (prompt if rule.protect_prompt else 0))
    return float(np.ceil(slots / size))
