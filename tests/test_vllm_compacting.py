"""Compaction between steps, carried out on labels: nothing is lost, and the budgets and the pool are kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvreclaim import InputError
from kvreclaim.cost import CopyCost
from kvreclaim.runtimes.vllm.compacting import StepBudget, plan_rows
from kvreclaim.runtimes.vllm.plan import end_to_end

SHAPE = (2, 2)
PAIR = 8
COST = CopyCost(fixed=1.0, per_run=0.5, per_byte=0.125)
NO_LIMIT = StepBudget(PAIR, 2)


@st.composite
def alive(draw):
    """Rows of requests by name, each head with a live pair of its own; and a block size."""
    rows, together = {}, draw(st.booleans())
    for name in "abc"[: draw(st.integers(1, 3))]:
        slots = draw(st.integers(1, 30))
        row = draw(arrays(np.bool_, (1, 1, slots) if together else (*SHAPE, slots)))
        row[..., draw(st.integers(0, slots - 1))] = True
        rows[name] = np.broadcast_to(row, (*SHAPE, slots))
    return rows, draw(st.sampled_from([1, 2, 4, 8]))


def blocks_of(slots, block_size):
    return -(-slots // block_size)


def price(plans):
    """What the moves of a step cost: in each of two layers once, and each head's runs and bytes."""
    moves = sum(plan.moves for plan in plans.values())
    runs = sum(plan.runs for plan in plans.values())
    return 2 * COST.fixed + COST.per_run * runs + COST.per_byte * PAIR * moves if moves else 0.0


@given(alive(), st.integers(1, 12), st.none() | st.floats(3.5, 12), st.integers(0, 3))
def test_steps_lose_nothing_and_end_where_a_whole_compaction_does(drawn, pairs, seconds, fresh):
    """A new live token comes to every row before each of the first steps."""
    rows, block_size = drawn
    budget = StepBudget(PAIR, 2, PAIR * pairs, seconds, COST)
    live = {name: row.copy() for name, row in rows.items()}
    labels = {name: np.broadcast_to(np.arange(row.shape[-1]), row.shape) for name, row in rows.items()}
    expected = {
        (name, *head): set(np.flatnonzero(row[head]))
        for name, row in rows.items()
        for head in np.ndindex(SHAPE)
    }
    for step in range(400):
        if step < fresh:
            for name in rows:
                newest = np.full((*SHAPE, 1), 100 + step)
                labels[name] = np.concatenate([labels[name], newest], axis=-1)
                live[name] = np.concatenate([live[name], np.ones((*SHAPE, 1), np.bool_)], axis=-1)
            for tokens in expected.values():
                tokens.add(100 + step)
        planned = plan_rows(live, block_size, budget)
        plans = planned.plans
        assert sum(plan.moves for plan in plans.values()) <= pairs
        assert planned.seconds == pytest.approx(price(plans))
        assert seconds is None or planned.seconds <= seconds + 1e-9
        for name, plan in plans.items():
            assert not set(zip(plan.head, plan.source, strict=True)) & set(
                zip(plan.head, plan.destination, strict=True)
            )
            assert (np.diff(plan.head) >= 0).all()
            assert len(plan.blocks) == blocks_of(plan.held, block_size)
            labels[name], live[name] = plan.carry(labels[name], -1), plan.live
        for name, *head in expected:
            found = labels[name][tuple(head)][live[name][tuple(head)]]
            assert sorted(found) == sorted(expected[name, *head])
        if not plans and step >= fresh:
            break
    assert not plan_rows(live, block_size, budget).plans
    for row in live.values():  # the fullest head fills all blocks but less than one
        assert row.shape[-1] - row.sum(axis=-1).max() < block_size


@pytest.mark.parametrize("pairs", [1, 3, None])
def test_the_cheapest_blocks_of_all_rows_go_first(pairs):
    few = np.array([[[True, False, False, False, *[True] * 3, False]]])
    many = np.array([[[True, True, True, False, *[True] * 3, False]]])
    budget = StepBudget(PAIR, 1, None if pairs is None else PAIR * pairs)
    step = plan_rows({"many": many, "few": few}, 4, budget)
    assert set(step.plans) == {"few"}  # of many, six tokens need both of its blocks
    assert step.plans["few"].blocks.tolist() == [1]
    assert step.plans["few"].moves == 1
    assert step.seconds is None


def test_heads_that_keep_other_pairs_give_up_the_same_block():
    """By hand: one pair of one head and two of the other hold the first block; each head has its holes."""
    one = [0, 1, 0, 0, 1, 0, 1, 1]
    other = [1, 0, 1, 0, 0, 1, 0, 1]
    step = plan_rows({"a": np.array([[one, other]], bool)}, 4, StepBudget(PAIR, 1, cost=COST))
    plan = step.plans["a"]
    assert plan.blocks.tolist() == [1]
    moves = zip(plan.head.tolist(), plan.source.tolist(), plan.destination.tolist(), strict=True)
    assert list(moves) == [(0, 1, 5), (1, 0, 4), (1, 2, 6)]
    assert step.seconds == 1.0 + 3 * (0.5 + 0.125 * PAIR)
    assert plan.live.all()


def test_the_moves_of_rows_end_to_end():
    """In the memory of both rows, each pair lands where the row's own plan says."""
    generator = np.random.default_rng(0)
    rows = {name: generator.random((*SHAPE, slots)) < 0.4 for name, slots in (("a", 24), ("b", 16))}
    plans = plan_rows(rows, 4, NO_LIMIT).plans
    blocks = {"a": np.array([5, 0, 7, 2, 9, 4]), "b": np.array([8, 3, 6, 1])}
    numbers, (head, source, destination) = end_to_end([(blocks[name], plans[name]) for name in "ab"])
    memory = generator.integers(1, 1000, (4, 10, 4))
    moved = memory.copy()
    to, of = (numbers[slots // 4] * 4 + slots % 4 for slots in (destination, source))
    moved.reshape(4, -1)[head, to] = memory.reshape(4, -1)[head, of]
    assert (np.diff(head) >= 0).all()
    for name, plan in plans.items():
        before, after = (each[:, blocks[name]].reshape(*SHAPE, -1) for each in (memory, moved))
        carried, stays = plan.carry(before, 0), after[..., plan.slots]
        assert np.array_equal(carried[plan.live], stays[plan.live])


def test_no_rows_no_plans():
    assert plan_rows({}, 4, NO_LIMIT).plans == {}


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ({"copy_bytes": 7}, "copy_budget 7 moves no pair of this model: pass at least 8"),
        ({"latency": 3.4, "cost": COST}, "latency_budget 3.4 moves no pair, which costs 3.5 seconds"),
    ],
)
def test_budgets_that_move_nothing_are_refused(budget, says):
    with pytest.raises(InputError, match=says):
        StepBudget(PAIR, 2, **budget)
