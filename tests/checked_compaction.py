"""Prices of copies, made up, and a check of what a step of compaction says of itself."""

from dataclasses import dataclass

import numpy as np
import pytest

from kvreclaim.compaction import PoolOccupancy, TokenCopy


@dataclass(frozen=True)
class Price:
    """Seconds, made up: a launch, a run, a byte."""

    fixed: float = 5.0
    per_run: float = 0.5
    per_byte: float = 0.25


FREE = TokenCopy(Price(0, 0, 0), token_bytes=1)
COPY = TokenCopy(Price(), token_bytes=2, tensors=3, table_update=0.125)


def check(pool: PoolOccupancy, plan, copy: TokenCopy) -> np.ndarray:
    """The moves are safe and what the plan says; return the occupancy after them."""
    moves = list(zip(plan.head.tolist(), plan.source.tolist(), plan.destination.tolist(), strict=True))
    places = {(head, *place) for head, *both in moves for place in both}
    assert len(places) == 2 * plan.moved_tokens
    before, after = pool.by_head, pool.by_head.copy()
    runs = 0
    for index, (head, (entry, slot), (to, into)) in enumerate(moves):
        assert pool.request[entry] == pool.request[to]
        assert before[head, entry, slot]
        assert not before[head, to, into]
        assert pool.writable[to, into]
        assert pool.movable[entry]
        assert before[:, to].any() or not pool.movable[to]
        runs += not index or moves[index - 1] != (head, [entry, slot - 1], [to, into - 1])
        after[head, entry, slot], after[head, to, into] = False, True
    assert np.array_equal(plan.applied(pool.live), after.reshape(pool.live.shape))
    assert np.array_equal(plan.freed, np.flatnonzero(pool.movable & ~after.any(axis=(0, 2))))
    emptied = len(plan.freed) - empty_already(pool)
    price = copy.price
    seconds = price.fixed + runs * copy.tensors * price.per_run + emptied * copy.table_update
    seconds += plan.moved_tokens * copy.token_bytes * price.per_byte
    assert plan.seconds == pytest.approx(seconds if plan.moved_tokens else 0.0)
    return after.reshape(pool.live.shape)


def empty_already(pool: PoolOccupancy) -> int:
    """Blocks that hold nothing and may go."""
    return int((pool.movable & ~pool.by_head.any(axis=(0, 2))).sum())
