"""The selection that H2O and SnapKV share: a recent window, and the best of what lies before it."""

from __future__ import annotations

import numpy as np

from kvreclaim.policies.base import BoolArray, Scores, eviction_order


def keep_recent_and_best(scores: Scores, budget: int, window: int) -> BoolArray:
    """Keep the last ``window`` tokens and the best-scored ``budget - window`` of those before.

    Parameters
    ----------
    scores
        [layers, kv_heads, tokens].
    budget, window
        Tokens kept in all, and of those at the end: window <= budget <= tokens.
    """
    before = scores.shape[-1] - window
    keep = np.zeros(scores.shape, np.bool_)
    keep[..., before:] = True
    order = eviction_order(scores[..., :before])
    np.put_along_axis(keep, order[..., before - (budget - window) :], True, axis=-1)
    return keep
