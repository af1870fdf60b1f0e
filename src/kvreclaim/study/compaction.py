"""What compaction costs after a scattered, a clustered and a block-coherent eviction of half the pool."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvreclaim.bounds import compaction_moves_lower_bound, random_reclaim
from kvreclaim.keep import KeepMask
from kvreclaim.layout import PER_HEAD, BlockLayout
from kvreclaim.layout.models import model
from kvreclaim.policies import BlockWise, RandomTokens, budget_at
from kvreclaim.scores.synthetic import importance
from kvreclaim.study.measures import Measures, measure, stack
from kvreclaim.study.rows import Point, Row
from kvreclaim.study.seeds import Seeds, generator, stream
from kvreclaim.study.settings import BLOCK_SIZE, HALF, POOL_BLOCKS, POOL_TOKENS

CLUSTERED_HOLE = "clustered-hole"
MODEL = "llama-3-8b"
BUDGET = budget_at(POOL_TOKENS, HALF)


def run(seeds: Seeds) -> list[Row]:
    """Return moves, slots per move, sources of free blocks and bytes copied."""
    masks = {
        RandomTokens.name: random_masks(seeds),
        CLUSTERED_HOLE: clustered_holes(seeds),
        BlockWise.name: _block_wise_masks(seeds),
    }
    simulated = [row for policy, mask in masks.items() for row in _rows(policy, measure(mask, BLOCK_SIZE))]
    return simulated + _closed_forms()


def random_masks(seeds: Seeds) -> KeepMask:
    """Keep tokens drawn without replacement."""
    policies = [RandomTokens(stream(seed, "compaction", RandomTokens.name)) for seed in seeds]
    return stack(policy.select(np.zeros(POOL_TOKENS), BUDGET) for policy in policies)


def clustered_holes(seeds: Seeds) -> KeepMask:
    """Evict one contiguous hole at a random token.

    The study does not define its clustered holes. One hole fits its remark that the total ratio
    "looks like thousands"; many holes do not.
    """
    keep = np.ones((len(seeds), POOL_TOKENS), np.bool_)
    hole = POOL_TOKENS - BUDGET
    for row, seed in zip(keep, seeds, strict=True):
        start = generator(seed, "compaction", CLUSTERED_HOLE).integers(0, BUDGET, endpoint=True)
        row[start : start + hole] = False
    return KeepMask(keep)


def hole_slots_per_move() -> NDArray[np.float64]:
    """Return slots per move of one hole that starts 1 ... B-1 tokens into a block, all equally likely."""
    offsets = np.arange(1, BLOCK_SIZE)
    return BLOCK_SIZE / np.minimum(offsets, BLOCK_SIZE - offsets)


def _block_wise_masks(seeds: Seeds) -> KeepMask:
    streams = [generator(seed, "compaction", "importance") for seed in seeds]
    scores = np.stack([importance(rng, "lognormal", POOL_TOKENS) for rng in streams])
    return BlockWise().select(scores, BUDGET, BlockLayout(BLOCK_SIZE, PER_HEAD))


def _rows(policy: str, runs: Measures) -> list[Row]:
    metrics = {
        "moved_tokens": runs.moved_tokens,
        "moved_fraction": runs.moved_fraction,
        "slots_per_move": runs.slots_per_move,
        "total_slots_per_move": runs.total_slots_per_move,
        "free_at_eviction": runs.free_blocks,
        "free_by_compaction": runs.freed_by_compaction,
        "moved_bytes": runs.moved_tokens * model(MODEL).bytes_per_token,
    }
    point = _point(policy)
    return [*point.simulated(metrics), _ratio_of_means(point, runs)]


def _ratio_of_means(point: Point, runs: Measures) -> Row:
    """Return all slots freed / all tokens moved, each token weighing the same.

    Its deviation is that of one run's part, so that std / sqrt(n) is the standard error, as it is of a mean.
    """
    slots, moved = runs.freed_by_compaction * BLOCK_SIZE, runs.moved_tokens
    if not moved.any():
        return point.statistic("slots_per_move_ratio_of_means", np.nan, np.nan, 0)
    ratio = float(slots.sum() / moved.sum())
    std = float((slots - ratio * moved).std() / moved.mean())
    return point.statistic("slots_per_move_ratio_of_means", ratio, std, len(moved))


def _closed_forms() -> list[Row]:
    moves = compaction_moves_lower_bound(POOL_TOKENS, BUDGET, BLOCK_SIZE)
    free = random_reclaim(POOL_TOKENS, POOL_TOKENS - BUDGET, BLOCK_SIZE) * POOL_BLOCKS
    freed = POOL_BLOCKS - BUDGET // BLOCK_SIZE - free
    per_hole = hole_slots_per_move()
    return [
        *_point(RandomTokens.name).closed_form(
            {
                "moved_tokens_lower_bound": moves,
                "slots_per_move_upper_bound": freed * BLOCK_SIZE / moves,
                "free_at_eviction": free,
                "free_by_compaction": freed,
            }
        ),
        *_point(CLUSTERED_HOLE).closed_form(
            {
                "slots_per_move": per_hole,
                "total_slots_per_move": per_hole * (POOL_BLOCKS - BUDGET // BLOCK_SIZE),
                "slots_per_move_ratio_of_means": 1.0 / (1.0 / per_hole).mean(),
            }
        ),
    ]


def _point(policy: str) -> Point:
    return Point("compaction", policy, "compression_ratio", HALF)
