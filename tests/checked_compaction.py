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
    assert len({tuple(place) for place in plan.source} | {tuple(place) for place in plan.destination}) == (
        2 * plan.moved_tokens
    )
    after = pool.live.copy()
    runs = 0
    for index, ((entry, slot), (to, into)) in enumerate(zip(plan.source, plan.destination, strict=True)):
        assert pool.request[entry] == pool.request[to]
        assert pool.live[entry, slot]
        assert not pool.live[to, into]
        assert pool.writable[to, into]
        assert pool.movable[entry]
        assert pool.live[to].any() or not pool.movable[to]
        follows = index and (*plan.source[index - 1], *plan.destination[index - 1]) == (
            entry,
            slot - 1,
            to,
            into - 1,
        )
        runs += not follows
        after[entry, slot], after[to, into] = False, True
    assert np.array_equal(plan.applied(pool.live), after)
    assert np.array_equal(plan.freed, np.flatnonzero(pool.movable & ~after.any(axis=1)))
    emptied = len(plan.freed) - int((pool.movable & ~pool.live.any(axis=1)).sum())
    price = copy.price
    seconds = price.fixed + runs * copy.tensors * price.per_run + emptied * copy.table_update
    seconds += plan.moved_tokens * copy.token_bytes * price.per_byte
    assert plan.seconds == pytest.approx(seconds if plan.moved_tokens else 0.0)
    return after
