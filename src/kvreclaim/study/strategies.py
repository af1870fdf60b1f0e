"""Four strategies with the same logical saving, over the eviction ratio, for one law of importance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvreclaim.bounds import low_importance_loss, random_reclaim
from kvreclaim.keep import KeepMask
from kvreclaim.layout import PER_HEAD, BlockLayout
from kvreclaim.policies import (
    BlockWise,
    LowestImportance,
    Policy,
    RandomTokens,
    ReclaimabilityAware,
    budget_at,
)
from kvreclaim.scores.synthetic import importance
from kvreclaim.study.measures import Measures, measure, stack
from kvreclaim.study.rows import Point, Row
from kvreclaim.study.seeds import Seeds, generator, stream
from kvreclaim.study.settings import BLOCK_SIZE, POOL_BLOCKS, POOL_TOKENS, RATIOS

BUDGETS = [budget_at(POOL_TOKENS, q) for q in RATIOS]
LAYOUT = BlockLayout(BLOCK_SIZE, PER_HEAD)
BY_SCORE: tuple[Policy, ...] = (LowestImportance(), BlockWise(), ReclaimabilityAware(beta=0.5))


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a policy gave at one ratio: the allocator's view and the importance lost, in every run."""

    policy: str
    ratio: float
    measures: Measures
    importance_loss: NDArray[np.float64]


def run(seeds: Seeds, distribution: str) -> list[Row]:
    """Return reclaim, loss, fragmentation, moves and admission of the four strategies."""
    return [row for outcome in simulate(seeds, distribution) for row in _rows(distribution, outcome)]


def simulate(seeds: Seeds, distribution: str) -> Iterator[Outcome]:
    """Yield the outcome of each policy at each ratio; all share a run's importance."""
    scores = importance_of(seeds, distribution)
    for ratio, mask in zip(RATIOS, _random_masks(seeds), strict=True):
        yield _outcome(RandomTokens.name, ratio, mask, scores)
    for policy in BY_SCORE:
        for ratio, mask in zip(RATIOS, policy.sweep(scores, BUDGETS, LAYOUT), strict=True):
            yield _outcome(policy.name, ratio, mask, scores)


def importance_of(seeds: Seeds, distribution: str) -> NDArray[np.float64]:
    """Return the runs' importance, [runs, tokens]."""
    streams = [generator(seed, "strategies", "importance", distribution) for seed in seeds]
    return np.stack([importance(rng, distribution, POOL_TOKENS) for rng in streams])


def _random_masks(seeds: Seeds) -> list[KeepMask]:
    """Return a mask [1, runs, tokens] for each ratio, the same for every distribution of importance."""
    shape = np.zeros(POOL_TOKENS)
    policies = [RandomTokens(stream(seed, "strategies", RandomTokens.name)) for seed in seeds]
    sweeps = [policy.sweep(shape, BUDGETS) for policy in policies]
    return [stack(masks) for masks in zip(*sweeps, strict=True)]


def _outcome(policy: str, ratio: float, mask: KeepMask, scores: NDArray[np.float64]) -> Outcome:
    lost = 1.0 - (scores * mask.array[0]).sum(axis=1) / scores.sum(axis=1)
    return Outcome(policy, ratio, measure(mask, BLOCK_SIZE), lost)


def _rows(distribution: str, outcome: Outcome) -> list[Row]:
    point = Point(f"strategies/{distribution}", outcome.policy, "compression_ratio", outcome.ratio)
    runs = outcome.measures
    metrics = {
        "logical_saving": runs.logical_saving,
        "physical_reclaim": runs.physical_reclaim,
        "reclaim_efficiency": runs.reclaim_efficiency,
        "importance_loss": outcome.importance_loss,
        "fragmentation": runs.fragmentation,
        "admitted": runs.admitted,
        "moved_tokens": runs.moved_tokens,
    }
    scattered = outcome.policy in (RandomTokens.name, LowestImportance.name)
    counted = point.rare_count(runs.free_blocks) if scattered else []
    return point.simulated(metrics) + counted + _closed_forms(point, distribution)


def _closed_forms(point: Point, distribution: str) -> list[Row]:
    """Return the laws: i.i.d. scores leave lowest-importance eviction the random law of reclaim."""
    evicted = POOL_TOKENS - budget_at(POOL_TOKENS, point.x)
    scattered = random_reclaim(POOL_TOKENS, evicted, BLOCK_SIZE)
    logical = evicted / POOL_TOKENS
    laws = {
        RandomTokens.name: {"physical_reclaim": scattered, "importance_loss": logical},
        LowestImportance.name: {
            "physical_reclaim": scattered,
            "importance_loss": low_importance_loss(distribution, logical),
        },
        BlockWise.name: {"physical_reclaim": evicted // BLOCK_SIZE / POOL_BLOCKS},
    }
    return point.closed_form(laws.get(point.policy, {}))
