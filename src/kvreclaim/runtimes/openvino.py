"""A scenario in OpenVINO GenAI, which evicts by itself: whole blocks, by the attention that they received.

Its `CacheEvictionConfig` keeps the blocks at the start, the latest ones, and of those between the ones of the
highest scores, as many as its budget says; no keep mask can be given to it. Its scheduler's rules are not
known here, so nothing is predicted. Its metrics tell the cache usage of a step before finished requests give
their blocks back, and neither blocks freed nor preemptions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.runtimes.observation import Observation, Row, Scenario
from kvreclaim.validate import positive_int

BLOCK_SIZE = 32  # of the CPU plugin's paged attention
EDGE = 32  # slots kept at the start, and at the end
MODEL_FILE = "openvino_model.xml"
POLICIES = {"sum": "SUM", "norm-sum": "NORM_SUM"}
"""How attention received is added up: as it is (H2O), or each token's by the queries that could see it."""


@dataclass(frozen=True)
class Eviction:
    """What OpenVINO GenAI is told to evict.

    Parameters
    ----------
    policy
        One of `POLICIES`.
    budget
        Slots that each request keeps: whole blocks, more than its two edges.

    Raises
    ------
    InputError
        If the policy is unknown, or the budget is not such.
    """

    policy: str
    budget: int

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InputError(f"policy {self.policy!r} is not OpenVINO's: pass one of {', '.join(POLICIES)}")
        if positive_int(self.budget, "budget") % BLOCK_SIZE or self.budget <= 2 * EDGE:
            raise InputError(
                f"budget is {self.budget}: pass whole blocks of {BLOCK_SIZE} and more than {2 * EDGE} slots"
            )


def observe(
    scenario: Scenario, chosen: Sequence[Eviction], report: Callable[[int], None] = lambda _: None
) -> list[Observation]:
    """Run a scenario with the full cache, and then with each eviction.

    Parameters
    ----------
    scenario
        The requests and the pool; its model is a folder in OpenVINO's format.
    chosen
        What is evicted.
    report
        Called with the number of runs done.

    Raises
    ------
    InputError
        If OpenVINO GenAI is missing, the model is in no such format, or the block size is another.
    """
    if find_spec("openvino_genai") is None:
        raise InputError("OpenVINO GenAI is not installed; install it: pip install 'kvreclaim[openvino]'")
    if scenario.block_size != BLOCK_SIZE:
        raise InputError(f"block_size is {scenario.block_size}: OpenVINO has blocks of {BLOCK_SIZE} on a CPU")
    if not (Path(scenario.path) / MODEL_FILE).is_file():
        raise InputError(
            f"{scenario.path} holds no {MODEL_FILE}: pass a folder that `optimum-cli export openvino` wrote "
            "(docs/observe.md)"
        )
    observations = []
    for done, eviction in enumerate([None, *chosen]):
        observations.append(_run(scenario, eviction))
        report(done + 1)
    return observations


def _run(scenario: Scenario, eviction: Eviction | None) -> Observation:
    import openvino_genai

    pipeline = openvino_genai.ContinuousBatchingPipeline(
        scenario.path,
        _scheduler(scenario, eviction),
        "CPU",
        {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32"},
    )
    started = time.perf_counter()
    steps = list(_steps(pipeline, scenario))
    seconds = time.perf_counter() - started
    return Observation(
        runtime="openvino",
        policy="none" if eviction is None else eviction.policy,
        mode=None if eviction is None else "free",
        budget=None if eviction is None else eviction.budget,
        buffer=None,
        observed={
            "peak_running": max(row["scheduled"] for row in steps),
            "steps": len(steps),
            "blocks_freed": None,
            "preemptions": None,
            "free_blocks_end": None,
        },
        predicted=None,
        unequal=None,
        moved_bytes=None,
        seconds=seconds,
        steps=tuple(steps),
    )


def _scheduler(scenario: Scenario, eviction: Eviction | None) -> Any:
    import openvino_genai

    config = openvino_genai.SchedulerConfig()
    config.num_kv_blocks = scenario.pool_blocks
    config.max_num_seqs = scenario.max_num_seqs
    config.max_num_batched_tokens = scenario.max_num_batched_tokens
    config.dynamic_split_fuse = False
    config.enable_prefix_caching = False
    if eviction is not None:
        mode = getattr(openvino_genai.AggregationMode, POLICIES[eviction.policy])
        config.use_cache_eviction = True
        config.cache_eviction_config = openvino_genai.CacheEvictionConfig(EDGE, EDGE, eviction.budget, mode)
    return config


def _steps(pipeline: Any, scenario: Scenario) -> Iterator[Row]:
    """Add all requests, run them to their end, and yield what the metrics say of each step."""
    import numpy as np
    import openvino
    import openvino_genai

    tokenizer = pipeline.get_tokenizer()
    generation = openvino_genai.GenerationConfig()
    generation.max_new_tokens = scenario.max_tokens
    generation.ignore_eos = True
    generation.do_sample = False

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).input_ids.data.ravel().tolist()
        return ids

    handles = [  # a request lives as long as its handle
        pipeline.add_request(place, openvino.Tensor(np.array([prompt.ids], np.int64)), generation)
        for place, prompt in enumerate(scenario.prompts(encode))
    ]
    number = 0
    while pipeline.has_non_finished_requests():
        pipeline.step()
        number += 1
        seen = pipeline.get_metrics()
        used = round(seen.cache_usage / 100 * scenario.pool_blocks)
        yield {
            "step": number,
            "free_blocks": scenario.pool_blocks - used,
            "scheduled": seen.scheduled_requests,
            "running": None,
            "waiting": seen.requests - seen.scheduled_requests,
            "preemptions": None,
        }
    del handles
