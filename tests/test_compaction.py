import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_by_hand import freed_by_moves
from strategies import keep_arrays

from kvreclaim import BlockLayout, InputError, audit, plan_compaction
from kvreclaim.compaction import cheapest_sources, compaction_cost
from kvreclaim.layout import BLOCK_TABLES
from kvreclaim.occupancy import occupancy


def with_occupancy(in_block, block_size):
    """A mask of one head whose blocks hold the given numbers of live tokens, in their first slots."""
    return np.concatenate([np.arange(block_size) < count for count in in_block])


@pytest.mark.parametrize(("block_size", "blocks"), [(2, 4), (3, 3), (4, 3), (2, 5)])
def test_no_sequence_of_moves_frees_more(block_size, blocks):
    """Against a search over all sequences of single-token moves, for every state and budget."""
    states = np.stack(np.meshgrid(*[range(block_size + 1)] * blocks), axis=-1).reshape(-1, blocks)
    for state in states[np.all(np.diff(states, axis=1) >= 0, axis=1)]:
        most = int(state.sum())
        for budget, best in enumerate(freed_by_moves(state, block_size, most)):
            plan = plan_compaction(with_occupancy(state, block_size), BlockLayout(block_size), budget)
            assert (plan.freed, plan.moved_tokens <= budget) == (best, True), (state, budget)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=2, max_size=3), st.integers(0, 9)
)
def test_a_budget_is_best_spent_over_several_tables(tables, budget):
    keep = np.stack([with_occupancy(row, 3) for row in tables])[:, None]
    best = [0] + [-1] * budget
    for row in tables:
        freed = freed_by_moves(row, 3, budget)
        best = [
            max(best[used] + freed[m - used] for used in range(m + 1) if best[used] >= 0)
            for m in range(budget + 1)
        ]
    plan = plan_compaction(keep, BlockLayout(3, "per_layer"), budget)
    assert plan.freed == max(best)
    assert plan.moved_tokens <= budget


@given(keep_arrays(), st.integers(1, 20), st.sampled_from(BLOCK_TABLES), st.none() | st.integers(0, 40))
def test_moves_are_safe_in_place_and_lose_nothing(keep, block_size, block_tables, budget):
    layout = BlockLayout(block_size, block_tables)
    before = occupancy(keep, layout)
    plan = plan_compaction(keep, layout, budget)
    held = {(t, b, s): (t, b, s) for t, b, s in live_slots(keep, layout)}
    waiting = set(held)
    for i in range(plan.moved_tokens):
        source = (int(plan.table[i]), int(plan.source_block[i]), int(plan.source_slot[i]))
        destination = (source[0], int(plan.destination_block[i]), int(plan.destination_slot[i]))
        assert source in waiting
        assert destination not in held
        held[destination] = held.pop(source)
        waiting.remove(source)
    assert len(held) == len(set(held.values())) == int(before.sum())
    emptied = {(t, b) for t, b in np.argwhere(before).tolist()} - {place[:2] for place in held}
    assert emptied == {tuple(pair) for pair in plan.freed_blocks.tolist()}
    assert all(0 <= slot < block_size for _table, _block, slot in held)


def live_slots(keep, layout):
    """(table, block, slot) of every live token, by the table's own union."""
    unions = {"shared": keep.any(axis=(0, 1))[None], "per_layer": keep.any(axis=1)}.get(layout.block_tables)
    unions = keep.reshape(-1, keep.shape[2]) if unions is None else unions
    return [(t, i // layout.block_size, i % layout.block_size) for t, i in np.argwhere(unions).tolist()]


@given(keep_arrays(), st.integers(1, 20), st.sampled_from(BLOCK_TABLES))
def test_the_full_plan_costs_what_the_ledger_says(keep, block_size, block_tables):
    layout = BlockLayout(block_size, block_tables)
    plan, found = plan_compaction(keep, layout), audit(keep, layout).compaction
    assert (plan.freed, plan.moved_tokens) == (found.freed_blocks, found.moved_tokens)


@given(keep_arrays(), st.integers(1, 20), st.integers(0, 30))
def test_a_larger_budget_never_frees_fewer(keep, block_size, budget):
    layout = BlockLayout(block_size, "per_head")
    assert plan_compaction(keep, layout, budget).freed <= plan_compaction(keep, layout, budget + 1).freed


def test_unfilled_slots_of_a_partial_last_block_receive():
    keep = np.zeros(18, bool)
    keep[[0, 16, 17]] = True
    plan = plan_compaction(keep, BlockLayout(16))
    assert plan.freed_blocks.tolist() == [[0, 0]]
    assert (plan.destination_block.tolist(), plan.destination_slot.tolist()) == ([1], [2])


@pytest.mark.parametrize("budget", [-1, 1.5, True, float("nan")])
def test_bad_budgets(budget):
    with pytest.raises(InputError, match="copy_budget"):
        plan_compaction(np.ones(8, bool), BlockLayout(4), budget)


@pytest.mark.parametrize("live", [np.ones(4, int), np.ones((2, 2)), np.empty((1, 0), int)])
def test_bad_counts(live):
    with pytest.raises(InputError, match="live counts"):
        compaction_cost(live, 4)
    with pytest.raises(InputError, match="live counts"):
        cheapest_sources(live, 4)
