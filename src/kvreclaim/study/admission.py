"""Admission: a full pool is evicted, and requests of 8 blocks each ask for what came free."""

from __future__ import annotations

from kvreclaim.policies import RandomTokens
from kvreclaim.study.rows import Point, Row
from kvreclaim.study.seeds import Seeds
from kvreclaim.study.settings import BLOCKS_PER_REQUEST, POOL_BLOCKS, RATIOS
from kvreclaim.study.strategies import simulate

WITH_COMPACTION = "random+compaction"
NAIVE = "naive"


def run(seeds: Seeds) -> list[Row]:
    """Return the requests admitted in the strategies' own runs, lognormal importance."""
    rows = []
    for outcome in simulate(seeds, "lognormal"):
        rows += _point(outcome.policy, outcome.ratio).simulated({"admitted": outcome.measures.admitted})
        if outcome.policy == RandomTokens.name:
            compacted = outcome.measures.admitted_after_compaction
            rows += _point(WITH_COMPACTION, outcome.ratio).simulated({"admitted": compacted})
    return rows + [row for q in RATIOS for row in _point(NAIVE, q).closed_form({"admitted": _naive(q)})]


def _naive(q: float) -> int:
    """Return the requests that the logical saving alone would admit."""
    return int(q * POOL_BLOCKS) // BLOCKS_PER_REQUEST


def _point(policy: str, q: float) -> Point:
    return Point("admission", policy, "compression_ratio", q)
