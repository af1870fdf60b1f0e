"""Compaction in steps: against exhaustive search and a table's optimum."""

from itertools import combinations

import numpy as np
import pytest
from checked_compaction import COPY, FREE, Price, check, empty_already
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreclaim import InputError
from kvreclaim.compaction import (
    PoolOccupancy,
    TokenCopy,
    cheapest_sources,
    compaction_cost,
    plan_compaction,
    plan_step,
)
from kvreclaim.layout import BlockLayout


@st.composite
def pools(draw: st.DrawFn, most_blocks: int = 7) -> PoolOccupancy:
    """A few requests; some blocks shared, the last block of some half written; whole tokens, or heads."""
    size, requests = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    heads = draw(st.sampled_from([(), (1,), (3,)]))
    lengths = [draw(st.integers(1, max(1, most_blocks // requests))) for _ in range(requests)]
    owner = np.repeat(np.arange(requests), lengths)
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    live = generator.random((*heads, len(owner), size)) < draw(st.floats(0.1, 0.9))
    writable = np.ones((len(owner), size), bool)
    for last in np.cumsum(lengths) - 1:
        writable[last, draw(st.integers(1, size)) :] = False
    live &= writable
    writable[generator.random(len(owner)) < draw(st.sampled_from([0.0, 0.3]))] = False
    return PoolOccupancy(owner, live, writable, writable.all(axis=1))


def most_freed(pool: PoolOccupancy, copies: float) -> int:
    """Exhaustive, request by request: the most blocks whose pairs fit into the others' holes, by head."""
    of_heads = pool.by_head.sum(axis=2)
    live = of_heads.sum(axis=0)
    holes = (pool.writable & ~pool.by_head).sum(axis=2)
    by_request = []
    for request in range(pool.requests):
        own = np.flatnonzero((pool.request == request) & (pool.movable | (live >= 0)))
        movable = [entry for entry in own if pool.movable[entry] and live[entry]]
        costs = {}
        for count in range(len(movable) + 1):
            for chosen in combinations(movable, count):
                others = [e for e in own if e not in chosen and (live[e] or not pool.movable[e])]
                if (holes[:, others].sum(axis=1) >= of_heads[:, list(chosen)].sum(axis=1)).all():
                    costs[count] = min(costs.get(count, np.inf), live[list(chosen)].sum())
        by_request.append(costs)
    best = {0: 0.0}
    for costs in by_request:
        merged: dict[int, float] = {}
        for (done, paid), (count, cost) in ((a, b) for a in best.items() for b in costs.items()):
            merged[done + count] = min(merged.get(done + count, np.inf), paid + cost)
        best = merged
    return max(count for count, cost in best.items() if cost <= copies)


@given(pools(), st.integers(1, 12))
def test_a_copy_budget_frees_the_most_that_it_can(pool: PoolOccupancy, copies: int) -> None:
    plan = plan_step(pool, FREE, copy_budget=copies)
    check(pool, plan, FREE)
    assert plan.moved_tokens <= copies
    assert len(plan.freed) - empty_already(pool) == most_freed(pool, copies)


@given(pools(), st.integers(1, 12), st.floats(5.1, 40))
def test_both_budgets_hold(pool: PoolOccupancy, copies: int, seconds: float) -> None:
    plan = plan_step(pool, COPY, copy_budget=copies, latency_budget=seconds)
    check(pool, plan, COPY)
    assert plan.moved_tokens <= copies
    assert plan.seconds <= seconds + 1e-9


@given(pools(12), st.integers(1, 5), st.floats(7.2, 20))
def test_steps_end_where_one_plan_without_a_budget_does(
    pool: PoolOccupancy, copies: int, seconds: float
) -> None:
    """However small the steps: each block is emptied for the copies that it holds, none moves twice."""
    whole = plan_step(pool, COPY)
    assert len(whole.freed) - empty_already(pool) == most_freed(pool, np.inf)
    moved, live = 0, pool.live
    for _ in range(200):
        now = PoolOccupancy(pool.request, live, pool.writable, pool.movable)
        step = plan_step(now, COPY, copy_budget=copies, latency_budget=seconds)
        if not step.moved_tokens:
            break
        live = check(now, step, COPY)
        moved += step.moved_tokens
    end, at_once = (
        PoolOccupancy(pool.request, each, pool.writable, pool.movable)
        for each in (live, whole.applied(pool.live))
    )
    assert empty_already(end) == empty_already(at_once)
    assert moved == whole.moved_tokens


@given(st.integers(0, 2**32), st.integers(1, 400), st.floats(0.05, 0.95))
def test_one_table_is_compacted_as_its_optimum(seed: int, copies: int, share: float) -> None:
    """A table of 64 full blocks, against the plan of a keep mask."""
    live = np.random.default_rng(seed).random((64, 16)) < share
    pool = PoolOccupancy(np.zeros(64, int), live, np.ones(live.shape, bool), np.ones(64, bool))
    plan = plan_step(pool, FREE, copy_budget=copies)
    best = cheapest_sources(live.sum(axis=1, dtype=np.int64)[None], 16, copies)
    assert len(plan.freed) - empty_already(pool) == int(best.sum())


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(0.1, 0.9), st.integers(50, 2000), st.integers(20, 300))
def test_steps_free_nearly_what_the_optimum_does_with_as_many_copies(
    seed: int, share: float, copies: int, step_budget: int
) -> None:
    """Forty requests of unequal size and fill; the last step may leave one block begun."""
    generator = np.random.default_rng(seed)
    owner = np.repeat(np.arange(40), generator.integers(1, 30, 40))
    fill = generator.beta(2, 2, 40)[owner, None] * 2 * share
    live = generator.random((len(owner), 16)) < fill
    everything = np.ones(live.shape, bool)
    best = plan_step(PoolOccupancy(owner, live, everything, everything.all(axis=1)), FREE, copy_budget=copies)
    now, left = live, copies
    while left:
        pool = PoolOccupancy(owner, now, everything, everything.all(axis=1))
        step = plan_step(pool, FREE, copy_budget=min(step_budget, left))
        if not step.moved_tokens:
            break
        now, left = step.applied(now), left - step.moved_tokens
    already = int((~live.any(axis=1)).sum())
    freed = int((~now.any(axis=1)).sum()) - already
    assert freed >= 0.95 * (len(best.freed) - already) - 1


def test_a_block_that_no_step_pays_for_whole_is_begun_and_ended() -> None:
    live = np.array([[True] * 4 + [False] * 4, [True] * 4 + [False] * 4])
    pool = PoolOccupancy(np.zeros(2, int), live, np.ones((2, 8), bool), np.ones(2, bool))
    first = plan_step(pool, FREE, copy_budget=3)
    assert (first.moved_tokens, list(first.freed)) == (3, [])
    live = first.applied(live)
    second = plan_step(PoolOccupancy(pool.request, live, pool.writable, pool.movable), FREE, copy_budget=3)
    assert (second.moved_tokens, len(second.freed)) == (1, 1)


def test_long_runs_are_cheaper_than_scattered_tokens() -> None:
    """Under a latency budget four neighbours go before three scattered tokens, under a copy budget after."""
    live = np.zeros((4, 8), bool)
    live[0, :4] = True
    live[1, [0, 3, 6]] = True
    live[2:, 3:] = True
    owner = np.array([0, 1, 0, 1])[[0, 2, 1, 3]]
    pool = PoolOccupancy(owner, live[[0, 2, 1, 3]], np.ones((4, 8), bool), np.ones(4, bool))
    copy = TokenCopy(Price(0, 1.0, 0.01), token_bytes=1)
    assert plan_step(pool, copy, latency_budget=3.5).moved_tokens in (3, 4)
    assert plan_step(pool, copy, copy_budget=4).source[:, 0].tolist() == [2, 2, 2]


def test_occupancy_of_block_tables() -> None:
    pool = PoolOccupancy.of_tables(
        {"a": (3, 1), "none": (), "b": (1, 0)},
        {"a": np.array([True, False, True, True]), "b": np.array([True, True, True])},
        shared=[False, True, False, False],
        block_size=2,
    )
    assert pool.request.tolist() == [0, 0, 1, 1]
    assert pool.live.tolist() == [[True, False], [True, True], [True, True], [True, False]]
    assert pool.writable.tolist() == [[True, True], [False, False], [False, False], [True, False]]
    assert pool.movable.tolist() == [True, False, False, False]


def test_occupancy_of_heads() -> None:
    live = {"a": np.array([[1, 0, 1], [0, 0, 1]], bool), "b": np.array([[1], [0]], bool)}
    pool = PoolOccupancy.of_tables({"a": (3, 1), "b": (0,)}, live, [False] * 4, 2)
    assert pool.live.astype(int).tolist() == [[[1, 0], [1, 0], [1, 0]], [[0, 0], [1, 0], [0, 0]]]
    assert pool.movable.tolist() == [True, False, False]


def test_the_fullest_head_says_how_many_blocks_go() -> None:
    """By hand: one head could leave a block, the other could not; once it can, its pairs are paid for too."""
    one, two = [[1, 0], [1, 0], [1, 1]], [[1, 1], [1, 0], [1, 1]]
    pool = PoolOccupancy(
        np.zeros(3, int), np.array([one, two], bool), np.ones((3, 2), bool), np.ones(3, bool)
    )
    assert plan_step(pool, FREE).moved_tokens == 0
    two[2] = [0, 0]
    pool = PoolOccupancy(pool.request, np.array([one, two], bool), pool.writable, pool.movable)
    plan = plan_step(pool, COPY)
    assert (plan.freed.tolist(), plan.moved_tokens) == ([1], 2)
    assert sorted(plan.head.tolist()) == [0, 1]


def test_nothing_held_is_nothing_to_do() -> None:
    pool = PoolOccupancy.of_tables({}, {}, [], 4)
    assert plan_step(pool, COPY, copy_budget=4).moved_tokens == 0


ONES = np.ones((2, 4), bool)


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (lambda pool: plan_step(pool, COPY, copy_budget=0), "copy_budget"),
        (lambda pool: plan_step(pool, COPY, latency_budget=0.0), "latency_budget"),
        (lambda pool: plan_step(pool, COPY, latency_budget=float("nan")), "latency_budget"),
        (lambda _: TokenCopy(Price(), 0), "token_bytes"),
        (lambda _: TokenCopy(Price(), 1, tensors=0), "tensors"),
        (lambda _: TokenCopy(Price(), 1, table_update=-1.0), "table_update"),
        (lambda _: PoolOccupancy(np.zeros(2, int), ONES[:1], ONES, ONES[:, 0]), "an entry a block"),
        (lambda _: PoolOccupancy(np.zeros(2, int), ONES, ~ONES, ONES[:, 0]), "movable"),
        (lambda _: PoolOccupancy(np.array([1, 2]), ONES, ONES, ONES[:, 0]), "from 0"),
        (lambda _: PoolOccupancy(np.array([0, 2]), ONES, ONES, ONES[:, 0]), "from 0"),
        (lambda _: PoolOccupancy.of_tables({"a": (0,)}, {"a": [True] * 5}, [False], 4), "'a' holds 1"),
        (lambda _: PoolOccupancy.of_tables({"a": (0,)}, {"a": [ONES]}, [False], 4), "as many heads"),
        (
            lambda _: PoolOccupancy.of_tables({"a": (0,), "b": (1,)}, {"a": ONES, "b": ONES[0]}, [0, 0], 4),
            "as many heads",
        ),
    ],
)
def test_bad_input_gets_one_clear_line(refused, says: str) -> None:  # type: ignore[no-untyped-def]
    pool = PoolOccupancy(np.zeros(2, int), ONES, ONES, ONES[:, 0])
    with pytest.raises(InputError, match=says) as error:
        refused(pool)
    assert "\n" not in str(error.value)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**63, 2**64, 10**400, -(2**70)]),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.one_of(st.integers(-2, 5), st.floats(), st.none(), st.booleans()), max_size=4),
    st.lists(st.lists(st.integers(-1, 2), max_size=3), max_size=3),
    st.sampled_from(
        [
            np.zeros(2),
            np.zeros(2, int),
            np.zeros((2, 4), bool),
            np.zeros((0, 4), bool),
            np.zeros((2, 4)),
            np.full(2, np.nan),
            np.array(["a", None], object),
            np.array(5),
            np.zeros(2, np.uint64),
            np.ones(2, bool),
        ]
    ),
    st.just({"a": [0, 0]}),
    st.just(Price()),
    st.builds(Price, st.floats(), st.floats(), st.floats()),
)
SOUND = {
    "pool": PoolOccupancy(np.zeros(2, int), ONES, ONES, ONES[:, 0]),
    "tables": {"a": (0,), "b": (1,)},
    "live": {"a": ONES[0], "b": ONES[0]},
}
CALLS = [
    (PoolOccupancy, (np.zeros(2, int), ONES, ONES, ONES[:, 0])),
    (PoolOccupancy.of_tables, (SOUND["tables"], SOUND["live"], [False] * 2, 4)),
    (lambda table, slots: PoolOccupancy.of_tables({"a": table}, {"a": slots}, [False] * 5, 4),
     ((0,), ONES[0])),
    (TokenCopy, (Price(), 1, 1, 0.0)),
    (lambda pool, copy, most, time: plan_step(pool, copy, copy_budget=most, latency_budget=time),
     (SOUND["pool"], COPY, 4, 1.0)),
    (cheapest_sources, (np.array([[1, 2, 4]]), 4, 3)),
    (compaction_cost, (np.array([[1, 2, 4]]), 4)),
    (plan_compaction, (ONES, BlockLayout(4), 2)),
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CALLS), st.data())
def test_whatever_is_passed_is_served_or_refused_in_one_line(call, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    function, sound = call
    given_ = list(sound)
    given_[data.draw(st.integers(0, len(sound) - 1))] = data.draw(ANYTHING)
    try:
        function(*given_)
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"a": (0,), "b": (0,)}, "block 0 is in the tables of requests 'a' and 'b'"),
        ({"a": (1,), "b": (1,)}, None),
        ({"a": (1, 1), "b": (0,)}, "block 1 is twice in the table of request 'a'"),
        ({"a": (2,), "b": (0,)}, "block 2 is in a table, and shared has 2"),
        ({"a": (-1,), "b": (0,)}, "blocks of request 'a'"),
    ],
)
def test_who_holds_a_block(tables, says) -> None:  # type: ignore[no-untyped-def]
    live = {request: np.ones(4 * len(table), bool) for request, table in tables.items()}
    if says is None:
        assert not PoolOccupancy.of_tables(tables, live, [False, True], 4).movable.any()
        return
    with pytest.raises(InputError, match=says):
        PoolOccupancy.of_tables(tables, live, [False, True], 4)
