"""A row's plan carried out on labels, and against brute force."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvreclaim.runtimes.vllm.plan import plan_row


@st.composite
def rows(draw, equal=False):
    """A keep mask with a live pair in each head, and a block size."""
    layers, heads, slots = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 40))
    keep = draw(arrays(np.bool_, (layers, heads, slots)))
    keep[..., draw(st.integers(0, slots - 1))] = True
    if equal:
        keep[:] = keep[:1, :1]
    return keep, draw(st.sampled_from([1, 2, 4, 8]))


def carried_out(keep, plan, block_size):
    """Move the tokens of each head as planned, in a pool of whole blocks; what each new slot then holds."""
    layers, heads, slots = keep.shape
    memory = np.full((layers * heads, -(-slots // block_size) * block_size), -1)
    memory[:, :slots] = np.arange(slots)
    for head, source, destination in zip(plan.head, plan.source, plan.destination, strict=True):
        memory[head, destination] = memory[head, source]
    taken = [block * block_size + slot for block in plan.blocks for slot in range(block_size)][: plan.held]
    return memory[:, taken].reshape(layers, heads, plan.held)


def blocks_of(tokens, block_size):
    return -(-tokens // block_size)


@given(rows(), st.sampled_from(["free", "pack", "mask"]), st.none() | st.integers(0, 60))
def test_no_survivor_is_lost_and_none_is_doubled(row, mode, budget):
    keep, block_size = row
    plan = plan_row(keep, block_size, mode, budget if mode == "pack" else None)
    held = carried_out(keep, plan, block_size)
    for layer, head in np.ndindex(keep.shape[:2]):
        assert sorted(held[layer, head][plan.live[layer, head]]) == np.flatnonzero(keep[layer, head]).tolist()
    assert np.array_equal(plan.carry(np.broadcast_to(np.arange(keep.shape[-1]), keep.shape), -1), held)
    assert blocks_of(plan.held, block_size) == len(plan.blocks)
    assert not set(zip(plan.head, plan.source, strict=True)) & set(
        zip(plan.head, plan.destination, strict=True)
    )


@given(rows())
def test_mask_leaves_everything_where_it_is(row):
    keep, block_size = row
    plan = plan_row(keep, block_size, "mask")
    assert plan.moves == plan.runs == 0
    assert plan.held == keep.shape[-1]
    assert np.array_equal(plan.live, keep)


@given(rows())
def test_free_takes_the_blocks_without_a_live_pair(row):
    keep, block_size = row
    plan = plan_row(keep, block_size, "free")
    dead = [
        block
        for block in range(blocks_of(keep.shape[-1], block_size))
        if not keep[..., block * block_size : (block + 1) * block_size].any()
    ]
    assert plan.moves == 0
    assert sorted({*plan.blocks.tolist(), *dead}) == list(range(blocks_of(keep.shape[-1], block_size)))
    assert not set(plan.blocks.tolist()) & set(dead)


@given(rows())
def test_pack_holds_what_the_fullest_head_needs(row):
    keep, block_size = row
    plan = plan_row(keep, block_size, "pack")
    assert plan.held == keep.sum(axis=-1).max()
    assert len(plan.blocks) == blocks_of(plan.held, block_size)


@given(rows())
def test_pack_moves_what_lies_outside_the_slots_that_stay(row):
    keep, block_size = row
    plan = plan_row(keep, block_size, "pack")
    assert plan.moves == keep.sum() - keep[..., plan.slots[plan.slots < keep.shape[-1]]].sum()


@given(rows())
def test_pack_moves_as_few_pairs_as_any_choice_of_blocks(row):
    keep, block_size = row
    keep = keep[..., : 8 * block_size]
    if not keep.any(axis=-1).all():
        return
    fullest, blocks = int(keep.sum(axis=-1).max()), blocks_of(keep.shape[-1], block_size)
    fewest = min(
        int(keep.sum() - keep[..., taken[taken < keep.shape[-1]]].sum())
        for staying in combinations(range(blocks), blocks_of(fullest, block_size))
        for taken in [
            np.array([block * block_size + slot for block in staying for slot in range(block_size)])[:fullest]
        ]
    )
    assert plan_row(keep, block_size, "pack").moves == fewest


@given(rows(equal=True), st.integers(0, 60))
def test_a_copy_budget_frees_as_many_blocks_as_any_choice_could(row, budget):
    keep, block_size = row
    keep = keep[..., : 8 * block_size]  # few enough to try every choice
    if not keep.any(axis=-1).all():
        return
    plan = plan_row(keep, block_size, "pack", budget)
    assert plan.moves <= budget
    per_block = np.add.reduceat(keep.sum(axis=(0, 1)), range(0, keep.shape[-1], block_size))
    blocks = len(per_block)
    fullest = int(keep.sum(axis=-1).max())
    best = max(
        emptied
        for emptied in range(blocks)
        for chosen in combinations(range(blocks), emptied)
        if per_block[list(chosen)].sum() <= budget and (blocks - emptied) * block_size >= fullest
    )
    assert blocks - len(plan.blocks) >= best


@pytest.mark.parametrize(
    ("keep", "runs"),
    [
        ("....####....####", 1),  # four into the hole, one stretch
        ("#..#....#.######", 2),  # two blocks stay, two tokens fill two holes apart from each other
        ("################", 0),
    ],
)
def test_runs(keep, runs):
    live = np.array([[[sign == "#" for sign in keep]]])
    assert plan_row(live, 8, "pack").runs == runs
