"""Realistic shapes at a matched retained ratio: StreamingLLM, SnapKV, H2O and random eviction.

The sequence has 50 blocks whatever their size, and each run a budget of its own: the retained ratio jitters
by .02 around its target, the same for all methods. 50, .02 and SnapKV's clusters of 12 tokens were fitted to
the figures that these rows reproduce.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kvreclaim.bounds import h2o_reclaim, random_reclaim, streaming_llm_freed, streaming_llm_moved
from kvreclaim.keep import KeepMask
from kvreclaim.policies import H2O, RandomTokens, SnapKV, StreamingLLM
from kvreclaim.scores.synthetic import random_clusters
from kvreclaim.study.measures import Measures, measure, stack
from kvreclaim.study.rows import Point, Row
from kvreclaim.study.seeds import Seeds, generator, stream
from kvreclaim.study.settings import BLOCK_SIZE, BLOCK_SIZES, HALF, RATIOS

BLOCKS = 50
JITTER = 0.02
SINKS = 4
RECENT_SHARE = 0.5
CLUSTER_LENGTH = 12

Stream = tuple[str | int, ...]


def run(seeds: Seeds) -> list[Row]:
    """Return the shapes over the block size, at 50 % retained."""
    rows = []
    for block_size in BLOCK_SIZES:
        rows += _compare(seeds, "shapes", "block_size", block_size, block_size, HALF)
    return rows


def run_retained(seeds: Seeds) -> list[Row]:
    """Return the shapes over the retained ratio, at B = 16."""
    rows = []
    for retained in RATIOS:
        rows += _compare(seeds, "shapes_retained", "retained", retained, BLOCK_SIZE, retained)
    return rows


def budgets(runs: int, tokens: int, retained: float) -> list[int]:
    """Return the runs' budgets L_s: normal quantiles around the target, so that their mean ratio is exact."""
    normal = NormalDist(retained, JITTER)
    return [round(normal.inv_cdf((run + 0.5) / runs) * tokens) for run in range(runs)]


def window_of(budget: int) -> int:
    """Return the recent window of H2O and SnapKV."""
    return int(budget * RECENT_SHARE)


def streaming_llm(_seed: int, _parts: Stream, tokens: int, budget: int) -> KeepMask:
    """Keep the sinks on top of the budget, which is the recent window."""
    return StreamingLLM(sinks=SINKS).select(np.zeros(tokens), budget + SINKS)


def snapkv(
    seed: int, parts: Stream, tokens: int, budget: int, cluster_length: int = CLUSTER_LENGTH
) -> KeepMask:
    """Keep the recent window, and clusters that start anywhere before it."""
    window = window_of(budget)
    clusters = random_clusters(generator(seed, *parts), tokens - window, cluster_length, budget - window)
    return SnapKV(window=window).select(np.pad(clusters, (0, window)), budget)


def h2o(seed: int, parts: Stream, tokens: int, budget: int) -> KeepMask:
    """Keep the recent window, and heavy hitters that fall anywhere before it."""
    return H2O(recent_share=RECENT_SHARE).select(generator(seed, *parts).random(tokens), budget)


def random_tokens(seed: int, parts: Stream, tokens: int, budget: int) -> KeepMask:
    """Keep tokens drawn without replacement."""
    return RandomTokens(seed=stream(seed, *parts)).select(np.zeros(tokens), budget)


SHAPES: dict[str, Callable[[int, Stream, int, int], KeepMask]] = {
    StreamingLLM.name: streaming_llm,
    SnapKV.name: snapkv,
    H2O.name: h2o,
    RandomTokens.name: random_tokens,
}


def _compare(
    seeds: Seeds, experiment: str, x_name: str, x: float, block_size: int, retained: float
) -> list[Row]:
    tokens = BLOCKS * block_size
    kept = budgets(len(seeds), tokens, retained)
    rows = []
    for policy, shape in SHAPES.items():
        parts = (experiment, policy, round(100 * x))
        runs = stack(shape(seed, parts, tokens, budget) for seed, budget in zip(seeds, kept, strict=True))
        point = Point(experiment, policy, x_name, x)
        rows += _simulated(point, measure(runs, block_size)) + _closed_forms(point, tokens, kept, block_size)
    return rows


def _simulated(point: Point, runs: Measures) -> list[Row]:
    metrics = {
        "physical_reclaim": runs.physical_reclaim,
        "retained": runs.retained,
        "moved_fraction": runs.moved_fraction,
        "fragmentation": runs.fragmentation,
        "compacted_reclaim": runs.compacted_reclaim,
    }
    return point.simulated(metrics) + point.rare_count(runs.free_blocks)


def _closed_forms(point: Point, tokens: int, kept: list[int], block_size: int) -> list[Row]:
    """Return the exact expectations, over the runs' budgets, where there are any."""
    reclaim = _expected_reclaim(point.policy, tokens, kept, block_size)
    if reclaim is None:
        return []
    rows = point.closed_form({"physical_reclaim": reclaim, "free_blocks_total": reclaim.sum() * BLOCKS})
    if point.policy == StreamingLLM.name:
        moved = [streaming_llm_moved(tokens, SINKS, budget, block_size) / (budget + SINKS) for budget in kept]
        rows += point.closed_form({"moved_fraction": moved})
    return rows


def _expected_reclaim(
    policy: str, tokens: int, kept: list[int], block_size: int
) -> NDArray[np.float64] | None:
    laws: dict[str, Callable[[int], float]] = {
        StreamingLLM.name: lambda budget: streaming_llm_freed(tokens, SINKS, budget, block_size) / BLOCKS,
        H2O.name: lambda budget: h2o_reclaim(tokens, budget, window_of(budget), block_size),
        RandomTokens.name: lambda budget: random_reclaim(tokens, tokens - budget, block_size),
    }
    return np.array([laws[policy](budget) for budget in kept]) if policy in laws else None
