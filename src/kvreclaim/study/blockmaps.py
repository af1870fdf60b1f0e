"""Block maps of the study: each of its policies over the compression ratio, on one short sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvreclaim import policies
from kvreclaim.blockmap import block_map, block_map_frame
from kvreclaim.layout import BlockLayout
from kvreclaim.scores.synthetic import importance, random_clusters
from kvreclaim.study.seeds import generator
from kvreclaim.study.settings import BLOCK_SIZE
from kvreclaim.study.shapes import CLUSTER_LENGTH, window_of

TOKENS = 32 * BLOCK_SIZE
POLICIES = (
    "random",
    "lowest-importance",
    "block-wise",
    "reclaimability-aware",
    "streaming-llm",
    "h2o",
    "snapkv",
)
RATIOS = tuple(step / 20 for step in range(1, 20))
SEED = 0


def block_maps() -> list[dict[str, Any]]:
    """Return a block map of each policy, JSON-ready; the seed is fixed, so they are always the same."""
    return [
        block_map(name, policies.get(name).title, BLOCK_SIZE, [_frame(name, ratio) for ratio in RATIOS])
        for name in POLICIES
    ]


def _frame(name: str, ratio: float) -> dict[str, Any]:
    budget = policies.budget_at(TOKENS, ratio)
    scores = _SCORES.get(name, _independent)(budget)
    mask = policies.get(name).select(scores, budget, BlockLayout(BLOCK_SIZE))
    return block_map_frame(mask, BLOCK_SIZE, ratio)


def _independent(_budget: int) -> NDArray[np.float64]:
    return importance(generator(SEED, "blockmaps"), "lognormal", TOKENS)


def _clusters(budget: int) -> NDArray[np.float64]:
    """Return clusters before the recent window that the budget leaves room for."""
    window = window_of(budget)
    clusters = random_clusters(generator(SEED, "blockmaps"), TOKENS - window, CLUSTER_LENGTH, budget - window)
    return np.pad(clusters, (0, window))


_SCORES: dict[str, Callable[[int], NDArray[np.float64]]] = {"snapkv": _clusters}
