"""The least importance that must be lost to free a given number of blocks."""

from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim.bounds.scatter import freed_range
from kvreclaim.errors import InputError
from kvreclaim.validate import check_at_most, check_block_size, non_negative_int


@dataclass(frozen=True, eq=False)
class FrontierPoint:
    """One point of the minimum-loss frontier.

    Attributes
    ----------
    loss
        Importance of the evicted tokens / all importance, attained by `keep`.
    lower_bound
        No eviction that frees as many blocks can lose less than this.
    keep
        bool [tokens], True = the token survives.
    """

    loss: float
    lower_bound: float
    keep: NDArray[np.bool_]


def minimum_loss_frontier(
    importance: ArrayLike, evicted: SupportsIndex, block_size: SupportsIndex, freed: SupportsIndex
) -> FrontierPoint:
    """Return the least loss of evicting `evicted` tokens so that at least `freed` blocks are empty.

    With a price tau for each eviction the problem falls apart: clear the blocks with the smallest
    sum of (importance - tau)+, and elsewhere evict what lies below tau. Raising tau evicts more; bisection
    finds the tau at which the count is right. Where some tau gives exactly `evicted` tokens the answer is
    optimal, and `loss` equals `lower_bound` up to rounding; with thousands of distinct scores that is nearly
    always so. Otherwise the count jumps past `evicted` as one block replaces another: then the sets of
    blocks from one side of the jump to the other are each completed with the lowest other tokens and the best
    is returned, and the optimum lies in [lower_bound, loss]. Against brute force on three to six blocks
    `loss` was above the optimum in three cases of some 8,000, by .013 at most; `lower_bound`
    may lie far below.

    Parameters
    ----------
    importance
        [tokens], finite and non-negative, not all 0.
    evicted
        Tokens to evict, 0 ... tokens.
    block_size
        B in tokens, at least 1; the last block may be partial.
    freed
        Blocks to free, at most what `freed_range` allows.

    Raises
    ------
    InputError
        If the importance is unusable or a count is out of range.
    """
    scores = _importance(importance)
    size = check_block_size(block_size)
    count = check_at_most(non_negative_int(evicted, "evicted"), scores.size, "evicted", "tokens")
    most = freed_range(scores.size, count, size)[1]
    blocks = check_at_most(non_negative_int(freed, "freed"), most, "freed", "the most that can be freed")
    return _Problem(scores, count, size, blocks).solve()


class _Problem:
    """The blocks to clear at each price, and what clearing them costs."""

    def __init__(self, scores: NDArray[np.float64], evicted: int, block_size: int, freed: int) -> None:
        self.scores = scores
        self.evicted = evicted
        self.freed = freed
        self.block_size = block_size
        self.block_of_token = np.arange(scores.size) // block_size
        self.starts = np.arange(0, scores.size, block_size)
        self.ascending = np.argsort(scores, kind="stable")

    def solve(self) -> FrontierPoint:
        low, price, high = self.bracket()
        while low < price < high:
            cleared = self.cheapest_blocks(price)
            below = self.scores < price
            count = np.count_nonzero(below | cleared[self.block_of_token])
            if count == self.evicted:
                low = high = price
            elif count < self.evicted:
                low = price
            else:
                high = price
            price = (low + high) / 2
        bound = max(self.least_cost(low), self.least_cost(high))
        cost, dead = min(
            (self.complete(cleared) for cleared in self.between(low, high)), key=lambda plan: plan[0]
        )
        total = float(self.scores.sum())
        return FrontierPoint(cost / total, max(0.0, min(bound, cost)) / total, ~dead)

    def bracket(self) -> tuple[float, float, float]:
        """Return prices at which too few and too many tokens are evicted, and a first guess between them.

        At the lower one the tokens below it and all cleared blocks are no more than wanted; where the blocks
        alone are more, it is so low that the partial last block is cleared first. Above every score all
        tokens are evicted. With nothing to free the answer is the guess.
        """
        ascending = self.scores[self.ascending]
        elsewhere = self.evicted - self.freed * self.block_size
        low = -2.0 * float(np.add.reduceat(self.scores, self.starts).max())
        if elsewhere >= 0:
            low = np.nextafter(float(ascending[min(elsewhere, ascending.size - 1)]), -np.inf)
        return float(low), float(ascending[min(self.evicted, ascending.size - 1)]), 2.0 * float(ascending[-1])

    def cheapest_blocks(self, price: float) -> NDArray[np.bool_]:
        """Return bool [blocks], the blocks to clear when evicting a token is worth `price`."""
        cleared = np.zeros(self.starts.size, dtype=bool)
        cleared[np.argsort(self.excess(price), kind="stable")[: self.freed]] = True
        return cleared

    def excess(self, price: float) -> NDArray[np.float64]:
        """Return [blocks], what each block's tokens cost above the price."""
        return np.add.reduceat(np.maximum(self.scores - price, 0.0), self.starts)

    def least_cost(self, price: float) -> float:
        """Return the dual value at the price: a lower bound on the importance lost by any solution."""
        cheapest = np.sort(self.excess(price))[: self.freed]
        return float(np.minimum(self.scores - price, 0.0).sum() + price * self.evicted + cheapest.sum())

    def between(self, low: float, high: float) -> list[NDArray[np.bool_]]:
        """Return the sets of blocks from that at `low` to that at `high`, one exchange apart."""
        first, last = self.cheapest_blocks(low), self.cheapest_blocks(high)
        sets = [first]
        for leaves, enters in zip(np.flatnonzero(first & ~last), np.flatnonzero(last & ~first), strict=True):
            following = sets[-1].copy()
            following[[leaves, enters]] = False, True
            sets.append(following)
        return [cleared for cleared in sets if self.tokens_in(cleared) <= self.evicted]

    def tokens_in(self, cleared: NDArray[np.bool_]) -> int:
        return int(np.count_nonzero(cleared[self.block_of_token]))

    def complete(self, cleared: NDArray[np.bool_]) -> tuple[float, NDArray[np.bool_]]:
        """Return the cost and bool [tokens] of clearing these blocks and the lowest other tokens."""
        dead = cleared[self.block_of_token]
        others = self.ascending[~dead[self.ascending]]
        dead[others[: self.evicted - np.count_nonzero(dead)]] = True
        return float(self.scores[dead].sum()), dead


def _importance(importance: ArrayLike) -> NDArray[np.float64]:
    scores = np.asarray(importance)
    usable = scores.dtype.kind in "iuf" and scores.ndim == 1 and scores.size > 0
    if not usable or not np.all(np.isfinite(scores)) or np.any(scores < 0) or not np.any(scores > 0):
        raise InputError("importance: pass one row of finite, non-negative numbers, not all of them 0")
    return scores.astype(np.float64)
