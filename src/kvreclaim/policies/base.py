"""What every policy shares: checked scores and budgets in, a keep mask out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask, MaskMetadata
from kvreclaim.layout import BlockLayout
from kvreclaim.validate import check_at_most, check_ratio, non_negative_int

Scores = NDArray[np.floating]
BoolArray = NDArray[np.bool_]
Selector = Callable[[int], BoolArray]
"""Takes a budget, returns a bool array [layers, kv_heads, tokens]."""


class Policy(ABC):
    """Decides from scores and a budget which KV pairs survive.

    A policy is a frozen dataclass whose fields are its configuration. Where scores tie, the earlier token is
    evicted first. ``name`` is for tables and commands, in kebab-case; ``title`` is for
    readers.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    def select(self, scores: ArrayLike, budget: SupportsIndex, layout: BlockLayout | None = None) -> KeepMask:
        """Select the KV pairs to keep.

        Parameters
        ----------
        scores
            Importance [layers, kv_heads, tokens], [kv_heads, tokens] or [tokens]; finite, not negative.
        budget
            KV pairs kept per (layer, head), from 0 to the number of tokens.
        layout
            Blocks and block tables; required by the policies that evict whole blocks.

        Returns
        -------
        KeepMask
            Exactly ``budget`` True in each (layer, head).

        Raises
        ------
        InputError
            If scores, budget or layout cannot be used.
        """
        return self.sweep(scores, [budget], layout)[0]

    def sweep(
        self, scores: ArrayLike, budgets: Sequence[SupportsIndex], layout: BlockLayout | None = None
    ) -> list[KeepMask]:
        """Select at several budgets; what does not depend on the budget is computed once.

        Parameters and errors are those of `select`; one mask per budget, in their order.
        """
        checked = check_scores(scores)
        tokens = checked.shape[-1]
        selector = self._selector(checked, layout)
        masks = []
        for budget in budgets:
            kept = check_at_most(non_negative_int(budget, "budget"), tokens, "budget", "tokens")
            metadata = MaskMetadata(policy=self.name, ratio=1.0 - kept / tokens)
            masks.append(KeepMask(selector(kept), name=self.name, metadata=metadata))
        return masks

    @abstractmethod
    def _selector(self, scores: Scores, layout: BlockLayout | None, /) -> Selector:
        """Return the function from a checked budget to the mask, for checked scores of rank 3."""


class RankedPolicy(Policy):
    """A policy whose evictions are nested: one order of eviction serves every budget."""

    @abstractmethod
    def _eviction_rank(self, scores: Scores, layout: BlockLayout | None, /) -> NDArray[np.intp]:
        """Return [layers, kv_heads, tokens]: the place of each token in its head's eviction, from 0."""

    def _selector(self, scores: Scores, layout: BlockLayout | None, /) -> Selector:
        rank = self._eviction_rank(scores, layout)
        return lambda budget: rank >= scores.shape[-1] - budget


def check_scores(scores: ArrayLike) -> Scores:
    """Return scores as a floating array [layers, kv_heads, tokens], or raise InputError."""
    try:
        array = np.asarray(scores)
    except ValueError:  # ragged nesting
        raise InputError("scores must be a rectangular array [layers, kv_heads, tokens] of numbers") from None
    if array.dtype.kind not in "iuf":
        raise InputError(
            f"scores must be real numbers, got an array of {array.dtype}: pass integers or floats"
        )
    if not 1 <= array.ndim <= 3 or array.size == 0:
        raise InputError(
            f"scores have shape {array.shape}: "
            "pass [layers, kv_heads, tokens], [kv_heads, tokens] or [tokens], none of them 0"
        )
    array = array.reshape((1,) * (3 - array.ndim) + array.shape)
    usable = np.isfinite(array) & (array >= 0)
    if not usable.all():
        layer, head, token = (int(i) for i in np.argwhere(~usable)[0])
        raise InputError(
            f"score {array[layer, head, token]} at layer {layer}, head {head}, token {token}: "
            "pass finite scores, none of them negative"
        )
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def budget_at(tokens: int, compression_ratio: float) -> int:
    """Return the KV pairs kept per head when exactly round(ratio * tokens) are evicted.

    Raises
    ------
    InputError
        If the ratio lies outside [0, 1].
    """
    return tokens - round(check_ratio(compression_ratio) * tokens)


def eviction_order(scores: NDArray[np.floating]) -> NDArray[np.intp]:
    """Return the tokens along the last axis in ascending order of score, of equals the earlier first."""
    return np.argsort(scores, axis=-1, kind="stable")


def rank_of(order: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the place of each token in `order`, the inverse of the permutation along the last axis."""
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(order.shape[-1]), order.shape), axis=-1)
    return rank


def lowest(values: NDArray[Any], count: int) -> BoolArray:
    """Mark the ``count`` lowest of some values ``[n]``; of equals the earlier. In linear time."""
    if count == 0:
        return np.zeros(values.shape, np.bool_)
    limit = np.partition(values, count - 1)[count - 1]
    marked: BoolArray = values < limit
    equals = np.flatnonzero(values == limit)
    marked[equals[: count - np.count_nonzero(marked)]] = True
    return marked
