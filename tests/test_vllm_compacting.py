"""Compaction between steps, carried out on labels: nothing is lost, and the budget and the pool are kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvreclaim.runtimes.vllm.compacting import plan_rows

SHAPE = (2, 2)


@st.composite
def alive(draw):
    """Rows of requests by name, token-wise live, each with a live token; and a block size."""
    rows = {}
    for name in "abc"[: draw(st.integers(1, 3))]:
        row = draw(arrays(np.bool_, draw(st.integers(1, 30))))
        row[draw(st.integers(0, len(row) - 1))] = True
        rows[name] = np.broadcast_to(row, (*SHAPE, len(row)))
    return rows, draw(st.sampled_from([1, 2, 4, 8]))


def blocks_of(slots, block_size):
    return -(-slots // block_size)


@given(alive(), st.integers(1, 12), st.integers(0, 3))
def test_steps_lose_nothing_and_end_where_a_whole_compaction_does(drawn, budget, fresh):
    """A new live token comes to every row before each of the first steps."""
    rows, block_size = drawn
    live = {name: row.copy() for name, row in rows.items()}
    labels = {name: np.broadcast_to(np.arange(row.shape[-1]), row.shape) for name, row in rows.items()}
    expected = {name: set(np.flatnonzero(row[0, 0])) for name, row in rows.items()}
    for step in range(40):
        if step < fresh:
            for name in rows:
                newest = np.full((*SHAPE, 1), 100 + step)
                labels[name] = np.concatenate([labels[name], newest], axis=-1)
                live[name] = np.concatenate([live[name], np.ones((*SHAPE, 1), np.bool_)], axis=-1)
                expected[name].add(100 + step)
        plans = plan_rows(live, block_size, budget)
        assert sum(plan.moves for plan in plans.values()) <= budget * 4
        for name, plan in plans.items():
            assert not set(plan.source) & set(plan.destination)
            assert len(plan.blocks) == blocks_of(plan.held, block_size)
            labels[name], live[name] = plan.carry(labels[name], -1), plan.live
        for name, row in live.items():
            for layer, head in np.ndindex(SHAPE):
                found = labels[name][layer, head][row[layer, head]]
                assert sorted(found) == sorted(expected[name])
        if not plans and step >= fresh:
            break
    assert not plan_rows(live, block_size, budget)
    for row in live.values():  # fewer holes than a block has slots
        assert row.shape[-1] - row[0, 0].sum() < block_size


@pytest.mark.parametrize("budget", [1, 3, None])
def test_the_cheapest_blocks_of_all_rows_go_first(budget):
    few = np.array([[[True, False, False, False, *[True] * 3, False]]])
    many = np.array([[[True, True, True, False, *[True] * 3, False]]])
    plans = plan_rows({"many": many, "few": few}, 4, budget)
    assert set(plans) == {"few"}  # of many, six tokens need both of its blocks
    assert plans["few"].blocks.tolist() == [1]
    assert plans["few"].moves == 1


def test_no_rows_no_plans():
    assert plan_rows({}, 4, None) == {}
