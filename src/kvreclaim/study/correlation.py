"""Spatial correlation: as low importance clusters, token eviction starts to free blocks."""

from __future__ import annotations

import numpy as np

from kvreclaim.bounds import random_reclaim, rice_gap
from kvreclaim.layout import PER_HEAD, BlockLayout
from kvreclaim.policies import BlockWise, LowestImportance, budget_at
from kvreclaim.scores.synthetic import correlated_importance
from kvreclaim.study.measures import measure
from kvreclaim.study.rows import Point, Row
from kvreclaim.study.seeds import Seeds, generator
from kvreclaim.study.settings import BLOCK_SIZE, HALF, POOL_TOKENS

RHOS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
SMOOTHING = 50.0
GAP = "gap_to_block_wise"


def run(seeds: Seeds) -> list[Row]:
    """Return what lowest-importance and block-wise eviction free, and the gap between them in each run."""
    return [row for rho in RHOS for row in _simulated(seeds, rho)] + _closed_forms()


def _simulated(seeds: Seeds, rho: float) -> list[Row]:
    # A run's noise and field are the same at every rho: the curve shows the mixture, not the draw.
    streams = [generator(seed, "correlation", "importance") for seed in seeds]
    scores = np.stack([correlated_importance(rng, POOL_TOKENS, rho, SMOOTHING) for rng in streams])
    budget, layout = budget_at(POOL_TOKENS, HALF), BlockLayout(BLOCK_SIZE, PER_HEAD)
    lowest, block_wise = (
        measure(policy.select(scores, budget, layout), BLOCK_SIZE).physical_reclaim
        for policy in (LowestImportance(), BlockWise())
    )
    return [
        *_point(LowestImportance.name, rho).simulated({"physical_reclaim": lowest}),
        *_point(BlockWise.name, rho).simulated({"physical_reclaim": block_wise}),
        *_point("gap", rho).simulated({GAP: block_wise - lowest}),
    ]


def _closed_forms() -> list[Row]:
    """Return the law at rho = 0, exact, and at rho = 1, Rice's approximation."""
    scattered = random_reclaim(POOL_TOKENS, round(HALF * POOL_TOKENS), BLOCK_SIZE)
    gaps = {0.0: HALF - scattered, 1.0: rice_gap(BLOCK_SIZE, SMOOTHING, HALF)}
    return [
        row
        for rho, gap in gaps.items()
        for row in [
            *_point(LowestImportance.name, rho).closed_form({"physical_reclaim": HALF - gap}),
            *_point("gap", rho).closed_form({GAP: gap}),
        ]
    ]


def _point(policy: str, rho: float) -> Point:
    return Point("correlation", policy, "rho", rho)
