"""The minimum-loss frontier: the least importance that must be lost for a given physical reclaim."""

from __future__ import annotations

from kvreclaim.bounds import minimum_loss_frontier
from kvreclaim.policies import budget_at
from kvreclaim.study.rows import Point, Row
from kvreclaim.study.seeds import Seeds
from kvreclaim.study.settings import BLOCK_SIZE, HALF, POOL_BLOCKS, POOL_TOKENS
from kvreclaim.study.strategies import importance_of

RECLAIMS = tuple(step / 32 for step in range(17))


def run(seeds: Seeds, distribution: str) -> list[Row]:
    """Return the least loss at half the tokens evicted, on the importance that the strategies see."""
    scores = importance_of(seeds, distribution)
    evicted = POOL_TOKENS - budget_at(POOL_TOKENS, HALF)
    rows = []
    for reclaim in RECLAIMS:
        freed = round(reclaim * POOL_BLOCKS)
        losses = [minimum_loss_frontier(run, evicted, BLOCK_SIZE, freed).loss for run in scores]
        point = Point(f"frontier/{distribution}", "minimum-loss", "physical_reclaim", reclaim)
        rows += point.simulated({"importance_loss": losses})
    return rows
