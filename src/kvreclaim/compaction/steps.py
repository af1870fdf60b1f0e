"""Compaction in steps: a few moves at a time, over many requests in one pool, within what a step may cost.

    between two decode steps:   occupancy ──▶ plan_step ──▶ copy, update tables, free ──▶ occupancy ──▶ ...

A step remembers nothing: what is left to do is in the occupancy, so it goes on wherever the last one ended,
and whatever tokens came or died in between.

A token may move to any writable dead slot of its request. Of a request with h such holes in its blocks,
h // B blocks can be emptied: the holes of the others hold their tokens. The least filled take the fewest
copies (`kvreclaim.compaction.choose`) and are the sources; the holes of the others are the destinations. The
two never meet, so moves are safe in place, in any order, and wherever a step ends. Over all requests sources
are taken in ascending order of their cost, which frees the most blocks that any choice could at that cost.

Where each head moves its own pairs, a block goes back once it is dead in all of them, and costs the pairs of
all; the head with the fewest holes says how many blocks can be emptied.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvreclaim.compaction.pool_occupancy import PoolOccupancy
from kvreclaim.errors import InputError
from kvreclaim.validate import positive, positive_int, shown

Indices = NDArray[np.int64]
Seconds = NDArray[np.float64]
_MOST = 2**63 - 1


class CopyPrice(Protocol):
    """What a copy costs in seconds; `CopyCost`, calibrated on a machine, is one."""

    @property
    def fixed(self) -> float:
        """Of a step that copies anything: launch and synchronisation."""

    @property
    def per_run(self) -> float:
        """Of a run, a stretch of consecutive slots in one tensor."""

    @property
    def per_byte(self) -> float:
        """Of a byte."""


@dataclass(frozen=True)
class TokenCopy:
    """What it takes to move one token; or one pair, where each head moves its own.

    Parameters
    ----------
    price
        Of copies.
    token_bytes
        Bytes of its KV pairs in all that a block table maps.
    tensors
        Tensors that they lie in, each a run of its own.
    table_update
        Seconds to take a freed block out of its table.

    Raises
    ------
    InputError
        If a number is not positive, or a time negative or not finite.
    """

    price: CopyPrice
    token_bytes: int
    tensors: int = 1
    table_update: float = 0.0

    def __post_init__(self) -> None:
        positive_int(self.token_bytes, "token_bytes")
        positive_int(self.tensors, "tensors")
        _seconds(self.table_update, "table_update")
        for name in ("fixed", "per_run", "per_byte"):
            _seconds(getattr(self.price, name, None), f"price.{name}")
        for name in ("token_bytes", "tensors"):
            if getattr(self, name) > _MOST:
                raise InputError(f"{name} is {shown(getattr(self, name))}: pass a whole number below 2**63")

    def seconds(self, tokens: NDArray[np.integer], runs: NDArray[np.integer | np.bool_]) -> Seconds:
        """Return what so many tokens in so many stretches of slots cost, but for a step's fixed cost."""
        by_bytes = np.float64(self.price.per_byte * self.token_bytes) * tokens
        total: Seconds = by_bytes + np.float64(self.price.per_run * self.tensors) * runs
        return total


@dataclass(frozen=True, eq=False)
class StepPlan:
    """The moves of a step, and the blocks that go back after them.

    Parameters
    ----------
    head
        int64 ``[moves]``: the head that moves a pair; 0 where whole tokens move.
    source, destination
        int64 ``[moves, 2]``: (entry, slot) in the occupancy that the step was planned on. A move copies what
        all tensors of the table, or those of the head, hold at the one to the other; the source is dead then.
    freed
        int64 ``[blocks]``: entries that hold no live token after the moves, ascending.
    seconds
        What the step costs.
    """

    head: Indices
    source: Indices
    destination: Indices
    freed: Indices
    seconds: float

    @property
    def moved_tokens(self) -> int:
        """Tokens that move; pairs, where each head moves its own."""
        return len(self.source)

    def applied(self, live: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the live slots, of the shape that the occupancy has, after the moves."""
        after = live.copy()
        by_head = after if after.ndim == 3 else after[None]
        by_head[self.head, *self.source.T] = False
        by_head[self.head, *self.destination.T] = True
        return after


def plan_step(
    pool: PoolOccupancy,
    copy: TokenCopy,
    *,
    copy_budget: int | None = None,
    latency_budget: float | None = None,
) -> StepPlan:
    """Choose what to move now, so that the most blocks are freed for what the step may cost.

    Blocks are emptied whole, the cheapest first: by tokens under a copy budget alone, else by seconds. Where
    none fits, the cheapest is begun, for a later step to end; under a latency budget below the price of a
    single token nothing moves. Blocks without a live token go back at no cost.

    Parameters
    ----------
    pool
        What the requests hold now.
    copy
        What moving a token takes, or a pair.
    copy_budget
        The most of them to move, at least 1; None for no limit.
    latency_budget
        The most seconds, above 0; None for no limit.

    Raises
    ------
    InputError
        If the pool or the copy is none, or a budget is not positive.
    """
    if not isinstance(pool, PoolOccupancy):
        raise InputError(f"pool is {shown(pool)}: pass a PoolOccupancy, such as PoolOccupancy.of_tables(...)")
    if not isinstance(copy, TokenCopy):
        raise InputError(
            f"copy is {shown(copy)}: pass a TokenCopy, such as TokenCopy(price, token_bytes=4096)"
        )
    limit = float("inf") if latency_budget is None else positive(latency_budget, "latency_budget")
    live = pool.by_head.sum(axis=(0, 2))
    sources = _sources(pool, live)
    tokens = live[sources]
    most = int(tokens.sum()) if copy_budget is None else positive_int(copy_budget, "copy_budget")
    seconds = copy.seconds(tokens, _stretches(pool.by_head[:, sources])) + copy.table_update
    order = np.argsort(tokens if latency_budget is None else seconds, kind="stable")
    fit = min(_within(tokens[order], most), _within(seconds[order], limit - copy.price.fixed))
    chosen = sources[order[: fit + 1]]  # and one more, which may be begun
    head, source, destination = _moves(pool, live, sources, chosen)
    ends = np.cumsum(live[chosen])
    cost = copy.seconds(np.ones(len(source), np.int64), _begins(head, source, destination))
    cost[ends - 1] += copy.table_update
    moves = min(most, _within(cost, limit - copy.price.fixed))
    emptied = int(np.searchsorted(ends, moves, side="right"))
    if emptied:
        moves = int(ends[emptied - 1])
    freed = np.concatenate([np.flatnonzero((live == 0) & pool.movable), chosen[:emptied]])
    return StepPlan(
        head[:moves],
        source[:moves],
        destination[:moves],
        np.sort(freed),
        seconds=copy.price.fixed + float(cost[:moves].sum()) if moves else 0.0,
    )


def _seconds(value: object, what: str) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 <= value < float("inf"):  # type: ignore[operator]  # a real number
        raise InputError(f"{what} is {shown(value)}: pass seconds, at least 0")


def _sources(pool: PoolOccupancy, live: Indices) -> Indices:
    """Return the entries that can be emptied together: the least filled of each request."""
    counted = (live > 0) | ~pool.movable
    holes = np.where(counted, (pool.writable & ~pool.by_head).sum(axis=2), 0)  # [heads, entries]
    by_request = [np.bincount(pool.request, of_head, minlength=pool.requests) for of_head in holes]
    most: Indices = np.min(by_request, axis=0).astype(np.int64) // pool.block_size
    held = np.flatnonzero(pool.movable & (live > 0))
    ascending = held[np.argsort(_by_request(pool, live)[held], kind="stable")]
    owner = pool.request[ascending]
    return ascending[_rank(owner) < most[owner]]


def _by_request(pool: PoolOccupancy, ascending: Indices) -> Indices:
    """Return keys that sort entries by request, and those of a request by a value up to all of its slots."""
    keys: Indices = pool.request * (2 * pool.live.size + 1) + ascending
    return keys


def _moves(
    pool: PoolOccupancy, live: Indices, sources: Indices, chosen: Indices
) -> tuple[Indices, Indices, Indices]:
    """Match what is live in the chosen sources to holes of their requests, of the fullest blocks first.

    Head, source and destination: block by block, in it head by head, and each head's in ascending order.
    """
    place, head, slot = np.nonzero(pool.by_head[:, chosen].transpose(1, 0, 2))
    source = np.stack([chosen[place], slot], axis=1)
    receives = np.zeros(pool.requests, np.bool_)
    receives[pool.request[chosen]] = True
    open_to = receives[pool.request] & ((live > 0) | ~pool.movable)
    open_to[sources] = False
    entries = np.flatnonzero(open_to)
    fullest_first = entries[np.argsort(_by_request(pool, -live)[entries], kind="stable")]
    of_head, place, slot = np.nonzero(pool.writable[fullest_first] & ~pool.by_head[:, fullest_first])
    holes = np.stack([fullest_first[place], slot], axis=1)
    taker = of_head * pool.requests + pool.request[holes[:, 0]]
    first_hole = np.searchsorted(taker, np.arange(len(pool.by_head) * pool.requests))
    mover = head * pool.requests + pool.request[source[:, 0]]
    by_mover = np.argsort(mover, kind="stable")
    nth = np.empty_like(by_mover)
    nth[by_mover] = _rank(mover[by_mover])
    return head, source, holes[first_hole[mover] + nth]


def _rank(ascending: Indices) -> Indices:
    """Return each value's place among its equals, from 0."""
    return np.arange(len(ascending)) - np.searchsorted(ascending, ascending)


def _stretches(live: NDArray[np.bool_]) -> Indices:
    """Count the stretches of live slots of each block, over all heads: ``[entries]``."""
    begins = live.copy()
    begins[..., 1:] &= ~live[..., :-1]
    counts: Indices = begins.sum(axis=(0, 2))
    return counts


def _begins(head: Indices, source: Indices, destination: Indices) -> NDArray[np.bool_]:
    """Say of each move whether it begins a run: its slots don't follow those of the head's move before."""
    begins = np.zeros(len(source), np.bool_)
    begins[:1] = True
    begins[1:] = np.diff(head) != 0
    for places in (source, destination):
        entry, slot = np.diff(places, axis=0).T
        begins[1:] |= (entry != 0) | (slot != 1)
    return begins


def _within(costs: NDArray[np.generic], budget: float) -> int:
    """Return how many of the costs, in their order, the budget pays for."""
    return int(np.searchsorted(np.cumsum(costs), budget, side="right"))
