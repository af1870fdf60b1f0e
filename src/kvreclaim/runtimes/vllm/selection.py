"""Which pairs of a row survive: the project's policies on a row's live slots, and those with unequal heads.

A row's slots need not lie in the order of their tokens, for packs fill holes, and some may be dead. A policy
sees the live ones in the order of their tokens; what it keeps goes back to their slots.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask
from kvreclaim.layout import BlockLayout
from kvreclaim.policies import (
    H2O,
    BlockWise,
    LowestImportance,
    PagedEviction,
    Policy,
    RandomTokens,
    SnapKV,
    StreamingLLM,
)
from kvreclaim.policies.joint import whole_budget
from kvreclaim.runtimes.vllm.kinds import (
    ALIGNED,
    BY_SLOT,
    JOINT,
    LAST,
    NONE,
    NORM,
    TRAILING,
    UNEQUAL,
    WINDOW,
)
from kvreclaim.runtimes.vllm.options import Options

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Positions = NDArray[np.int32]


def kind_of_scores(options: Options) -> str:
    """Return which scores a policy takes."""
    return NONE if options.scorer is None else options.scorer.kind


def select(
    options: Options, scores: Floats, positions: Positions, live: Bools, block_size: int, event: int
) -> Bools:
    """Return which slots of a row survive.

    Parameters
    ----------
    options
        The policy and its parameters.
    scores
        float ``[layers, kv_heads, slots]``, none negative; of the kind that `kind_of_scores` says. Attention
        of the latest queries is not yet smoothed.
    positions
        int32 of the same shape: the token in each slot.
    live
        bool of the same shape.
    block_size
        Tokens of a block, for whole-block eviction.
    event
        Evictions from this request before: random draws anew for each.
    """
    if live.all() and (positions[..., 1:] > positions[..., :-1]).all():  # as before any pack
        return _chosen(options, _finished(options, scores, live), live, block_size, event)
    order = np.argsort(np.where(live, positions, np.iinfo(np.int32).max), axis=-1, kind="stable")
    order = order[..., : int(live.sum(axis=-1).max())]
    ordered, there = np.take_along_axis(scores, order, axis=-1), np.take_along_axis(live, order, axis=-1)
    finished = _finished(options, ordered, there)
    if options.policy in BY_SLOT:  # blocks are of slots, not of tokens
        by_slot = np.zeros(scores.shape, np.float32)
        np.put_along_axis(by_slot, order, finished, axis=-1)
        return _chosen(options, by_slot, live, block_size, event)
    keep = np.zeros(live.shape, np.bool_)
    np.put_along_axis(keep, order, _chosen(options, finished, there, block_size, event), axis=-1)
    return keep


def keep_from_file(mask: KeepMask, tokens: int) -> Bools:
    """Return a prompt's mask for a row that holds the prompt and, after a preemption, what came since."""
    keep = np.ones((*mask.array.shape[:2], tokens), np.bool_)
    keep[..., : mask.tokens] = mask.array
    return keep


def _finished(options: Options, scores: Floats, there: Bools) -> Floats:
    """Return ordered scores as the policy wants them: smoothed, and highest for what it must keep."""
    kind = kind_of_scores(options)
    if kind == WINDOW:
        return _protect(_average(scores, options.smoothing, options.looking), there, options.looking)
    if kind == TRAILING:
        return _average(scores, options.smoothing, 0)
    if kind == LAST:
        return _protect(scores, there, 1)
    if kind == NORM:
        shorter: Floats = scores.max(axis=-1, keepdims=True) - scores
        return shorter
    return scores


def _average(scores: Floats, kernel: int, window: int) -> Floats:
    """Average along the sequence before the window over ``kernel`` tokens, those beyond its ends being 0."""
    before = scores[..., : max(scores.shape[-1] - window, 0)]
    half = kernel // 2
    sums = np.pad(before, [(0, 0), (0, 0), (half + 1, half)]).cumsum(axis=-1, dtype=np.float64)
    smooth = scores.copy()
    smooth[..., : before.shape[-1]] = np.maximum(sums[..., kernel:] - sums[..., :-kernel], 0.0) / kernel
    return smooth


def _protect(scores: Floats, there: Bools, latest: int) -> Floats:
    """Give each head's latest pairs more than any other has."""
    left = np.cumsum(there[..., ::-1], axis=-1)[..., ::-1]
    return np.where(there & (left <= latest), scores.max() + 1.0, scores).astype(np.float32)


def _chosen(options: Options, scores: Floats, there: Bools, block_size: int, event: int) -> Bools:
    """Return what survives of the pairs that are there, by finished scores."""
    if options.policy in UNEQUAL:
        return _UNEQUAL[options.policy](options, scores, there)
    living = scores.shape[-1]
    budget = _budget(options, living)
    if options.policy in ALIGNED:
        budget = whole_budget(budget, living, block_size)
    layout = BlockLayout(block_size=block_size)
    return _policy(options, event).select(scores, budget, layout).array & there


def _budget(options: Options, living: int) -> int:
    if options.budget is None:
        raise InputError(f"policy {options.policy} has no budget")
    return min(options.budget, living)


def _policy(options: Options, event: int) -> Policy:
    if options.policy in JOINT:
        return options.joint()
    makers: dict[str, Callable[[], Policy]] = {
        "streaming-llm": lambda: StreamingLLM(options.sinks),
        "snapkv": lambda: SnapKV(options.looking),
        "tova": LowestImportance,
        "h2o": lambda: H2O(options.recent_share),
        "knorm": LowestImportance,
        "rkv": LowestImportance,
        "triattention": LowestImportance,
        "block-wise": BlockWise,
        "paged-eviction": PagedEviction,
        "random": lambda: RandomTokens((options.seed, event)),
    }
    return makers[options.policy]()


def _adakv(options: Options, scores: Floats, there: Bools) -> Bools:
    """Keep the highest scores of each layer, in whichever heads, and some of each head (arXiv 2407.11550)."""
    layers, heads, living = scores.shape
    budget = _budget(options, living)
    rank = np.argsort(np.argsort(np.where(there, -scores, np.inf), axis=-1, kind="stable"), axis=-1)
    sure = there & (rank < int(budget * options.alpha))
    wanted = np.where(sure, -np.inf, np.where(there, -scores, np.inf)).reshape(layers, -1)
    order = np.argsort(wanted, axis=-1, kind="stable")[:, : budget * heads]
    keep = np.zeros((layers, heads * living), np.bool_)
    np.put_along_axis(keep, order, True, axis=-1)
    return keep.reshape(scores.shape) & there


def _pyramidkv(options: Options, scores: Floats, there: Bools) -> Bools:
    """Keep fewer pairs in each layer than in the one before, the window in all (arXiv 2406.02069)."""
    rank = np.argsort(np.argsort(np.where(there, -scores, np.inf), axis=-1, kind="stable"), axis=-1)
    budgets = pyramid_budgets(options, len(scores), scores.shape[-1])
    kept: Bools = there & (rank < budgets[:, None, None])
    return kept


def pyramid_budgets(options: Options, layers: int, tokens: int) -> NDArray[np.int64]:
    """Return the pairs that each layer keeps per head: a line from the first layer to the last.

    The mean is the budget, within rounding. Beyond the window the last layer keeps 1 / beta of the mean and
    the first what balances it, at most all tokens.
    """
    free = _budget(options, tokens) - options.looking
    last = free / options.pyramid
    first = min(2 * free - last, tokens - options.looking)
    line = np.linspace(first, 2 * free - first, layers)
    return np.diff(np.round(np.concatenate([[0.0], np.cumsum(line)]))).astype(np.int64) + options.looking


_UNEQUAL: dict[str, Callable[[Options, Floats, Bools], Bools]] = {"adakv": _adakv, "pyramidkv": _pyramidkv}
