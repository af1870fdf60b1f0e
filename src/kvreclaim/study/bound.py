"""The bound: what independent eviction frees, q^B, and the exact law for a fixed count of evictions."""

from __future__ import annotations

import math

from kvreclaim.bounds import independent_efficiency, independent_reclaim, random_reclaim
from kvreclaim.study.rows import Point, Row
from kvreclaim.study.seeds import Seeds
from kvreclaim.study.settings import BLOCK_SIZES, POOL_TOKENS

RATIOS = tuple(sorted({step / 50 for step in range(51)} | {0.75}))


def run(_seeds: Seeds) -> list[Row]:
    """Return reclaim and efficiency over the ratio, for each block size: closed forms, without seeds."""
    return [row for block_size in BLOCK_SIZES for q in RATIOS for row in _rows(block_size, q)]


def _rows(block_size: int, q: float) -> list[Row]:
    evicted = round(q * POOL_TOKENS)
    exact = random_reclaim(POOL_TOKENS, evicted, block_size)
    laws = {
        "independent": (
            independent_reclaim(q, block_size),
            independent_efficiency(q, block_size) if evicted else math.nan,
        ),
        "exact": (exact, exact * POOL_TOKENS / evicted if evicted else math.nan),
    }
    return [
        row
        for policy, (reclaim, efficiency) in laws.items()
        for row in Point(f"bound/B={block_size}", policy, "compression_ratio", q).closed_form(
            {"physical_reclaim": reclaim, "reclaim_efficiency": efficiency}
        )
    ]
