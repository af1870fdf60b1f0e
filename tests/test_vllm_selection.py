"""What survives in a row, against selections written out by hand or by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreclaim.keep import KeepMask
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.runtimes.vllm.selection import keep_from_file, pyramid_budgets, select

SHAPE = (2, 3, 40)


def row(seed, shape=SHAPE, shuffled=False):
    """Scores, positions and live marks of a row in which every pair lives."""
    generator = np.random.default_rng(seed)
    positions = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape).copy()
    if shuffled:
        positions = generator.permuted(positions, axis=-1)
    return generator.random(shape, np.float32), positions, np.ones(shape, np.bool_)


def kept(options, scores, positions, live, event=0):
    return select(options, scores, positions, live, 8, event)


EQUAL = ["streaming-llm", "snapkv", "tova", "h2o", "knorm", "random", "block-wise"]


@pytest.mark.parametrize("policy", EQUAL)
@given(seed=st.integers(0, 50))
def test_every_head_keeps_its_budget(policy, seed):
    keep = kept(Options(policy, 12, window=4), *row(seed))
    assert (keep.sum(axis=-1) == 12).all()


@pytest.mark.parametrize("policy", [name for name in EQUAL if name not in ("block-wise", "random")])
@given(seed=st.integers(0, 50))
def test_the_place_of_a_token_in_the_row_does_not_matter(policy, seed):
    options = Options(policy, 12, window=4, kernel=3)
    scores, positions, live = row(seed, shuffled=True)
    in_order = np.empty_like(scores)
    np.put_along_axis(in_order, positions.astype(int), scores, axis=-1)
    expected = kept(options, in_order, row(seed)[1], live)
    found = np.empty_like(live)
    np.put_along_axis(found, positions.astype(int), kept(options, scores, positions, live), axis=-1)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("policy", [*EQUAL[:-1], "adakv", "pyramidkv"])
@given(seed=st.integers(0, 50))
def test_the_dead_stay_dead(policy, seed):
    scores, positions, live = row(seed)
    live[..., np.random.default_rng(seed).permutation(40)[:15]] = False
    keep = kept(Options(policy, 12, window=4), scores, positions, live)
    assert not (keep & ~live).any()
    assert keep.sum() <= 12 * 6


def test_streaming_llm_goes_by_position():
    scores, positions, live = row(0, (1, 1, 10))
    keep = kept(Options("streaming-llm", 5, sinks=2), scores, positions[..., ::-1].copy(), live)
    assert np.flatnonzero(keep[0, 0]).tolist() == [0, 1, 2, 8, 9]


def test_snapkv_averages_along_the_tokens_and_keeps_its_window():
    scores = np.zeros((1, 1, 20), np.float32)
    scores[..., 5], scores[..., 10] = 9.0, 10.0
    _, positions, live = row(0, scores.shape)
    keep = kept(Options("snapkv", 9, window=4, kernel=5), scores, positions, live)
    assert np.flatnonzero(keep[0, 0]).tolist() == [8, 9, 10, 11, 12, 16, 17, 18, 19]


def test_knorm_drops_the_longest_keys():
    scores = np.arange(10, dtype=np.float32)[None, None]
    assert np.flatnonzero(kept(Options("knorm", 3), *(scores, *row(0, scores.shape)[1:]))[0, 0]).tolist() == [
        0,
        1,
        2,
    ]


def test_block_wise_clears_the_lowest_blocks_for_all_heads():
    scores = np.ones(SHAPE, np.float32)
    scores[0, 0, 8:16] = 0.0
    keep = kept(Options("block-wise", 32, scores="h2o"), *(scores, *row(0)[1:]))
    assert not keep[..., 8:16].any()
    assert keep.sum() == 32 * 6


@given(seed=st.integers(0, 50))
def test_adakv_keeps_some_of_each_head_and_then_a_layer_s_best(seed):
    scores, positions, live = row(seed)
    scores[:, 0] += 5.0
    keep = kept(Options("adakv", 12, window=1, kernel=1, alpha=0.5), scores, positions, live)
    scores[..., -1] = 100.0  # the window
    for layer in range(2):
        ranked = [
            sorted(range(40), key=lambda token, head=head: -scores[layer, head, token]) for head in range(3)
        ]
        sure = {(head, token) for head in range(3) for token in ranked[head][:6]}
        rest = {(head, token) for head in range(3) for token in range(40)} - sure
        best = sorted(rest, key=lambda place: -scores[layer][place])[: 36 - len(sure)]
        assert set(zip(*np.nonzero(keep[layer]), strict=True)) == {*sure, *best}


@given(st.integers(17, 200), st.integers(2, 30), st.integers(1, 40), st.integers(0, 800))
def test_pyramid_budgets_fall_from_layer_to_layer_around_the_budget(budget, layers, beta, more):
    budgets = pyramid_budgets(Options("pyramidkv", budget, window=16, beta=beta), layers, budget + more)
    assert budgets.sum() == budget * layers
    assert budgets.min() >= 16
    assert budgets.max() <= budget + more
    assert (np.diff(budgets) <= 1).all()


def test_a_mask_from_a_file_keeps_what_came_after_the_prompt():
    mask = KeepMask(np.array([[[True, False, True]]]))
    assert keep_from_file(mask, 5).tolist() == [[[True, False, True, True, True]]]
