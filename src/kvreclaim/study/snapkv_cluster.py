"""SnapKV over the length of its clusters, which the study leaves unsaid and its figure hangs on."""

from __future__ import annotations

from kvreclaim.bounds import snapkv_reclaim_estimate
from kvreclaim.policies import SnapKV
from kvreclaim.study import shapes
from kvreclaim.study.measures import measure, stack
from kvreclaim.study.rows import Point, Row
from kvreclaim.study.seeds import Seeds
from kvreclaim.study.settings import BLOCK_SIZE, HALF

CLUSTER_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
TOKENS = shapes.BLOCKS * BLOCK_SIZE


def run(seeds: Seeds) -> list[Row]:
    """Return SnapKV's reclaim at 50 % retained, B = 16; the closed form is an estimate for long sequences."""
    return [row for cluster_length in CLUSTER_LENGTHS for row in _rows(seeds, cluster_length)]


def _rows(seeds: Seeds, cluster_length: int) -> list[Row]:
    parts = ("snapkv_cluster", cluster_length)
    kept = shapes.budgets(len(seeds), TOKENS, HALF)
    runs = stack(
        shapes.snapkv(seed, parts, TOKENS, budget, cluster_length)
        for seed, budget in zip(seeds, kept, strict=True)
    )
    estimate = snapkv_reclaim_estimate(HALF, shapes.RECENT_SHARE, cluster_length, BLOCK_SIZE)
    point = Point("snapkv_cluster", SnapKV.name, "cluster_length", cluster_length)
    return point.simulated(
        {"physical_reclaim": measure(runs, BLOCK_SIZE).physical_reclaim}
    ) + point.closed_form({"physical_reclaim": estimate})
