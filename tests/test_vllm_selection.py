"""What survives in a row, against selections written out by hand or by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreclaim import BlockLayout, policies
from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask
from kvreclaim.policies.joint import whole_budget
from kvreclaim.runtimes.vllm.checks import check_blocks
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.runtimes.vllm.plan import plan_row
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


LOOKING = {policy: {"window": 4} for policy in ("snapkv", "rkv", "block-wise", "adakv", "pyramidkv")}
"""What is set of the policies that have a window."""

EQUAL = ["streaming-llm", "snapkv", "tova", "h2o", "knorm", "rkv", "random", "block-wise"]


@pytest.mark.parametrize("policy", EQUAL)
@given(seed=st.integers(0, 50))
def test_every_head_keeps_its_budget(policy, seed):
    keep = kept(Options(policy, 12, **LOOKING.get(policy, {})), *row(seed))
    assert (keep.sum(axis=-1) == 12).all()


JOINT = {"sinks": 2, "recent": 9, "scores": "h2o"}
COHERENT = [
    Options("block-joint", 27, **JOINT),
    Options("block-joint", 27, heads="max", tokens="top", **JOINT),
    Options("block-swap", 27, copies=0.05, **JOINT),
    Options("blend", 27, beta=0.5, **JOINT),
    Options("paged-eviction", 27),
]


@pytest.mark.parametrize("options", COHERENT, ids=lambda options: options.policy)
@given(seed=st.integers(0, 50), tokens=st.integers(30, 61))
def test_block_coherent_policies_are_the_core_s_and_fill_the_blocks_they_keep(options, seed, tokens):
    scores, positions, live = row(seed, (2, 3, tokens))
    keep = kept(options, scores, positions, live)
    budget = whole_budget(27, tokens, 8)
    given = {"paged-eviction": {}, "block-swap": {"copies": 0.05}, "blend": {"beta": 0.5}}
    joint = {} if options.policy == "paged-eviction" else {"sinks": 2, "recent": 9}
    joint |= {"heads": options.heads, "tokens": options.tokens} if options.policy == "block-joint" else {}
    policy = policies.get(options.policy, **given.get(options.policy, {}), **joint)
    assert np.array_equal(keep, policy.select(scores, budget, BlockLayout(8)).array)
    assert 27 - 8 < budget <= 27
    assert budget % 8 == tokens % 8
    plan = plan_row(keep, 8, "pack")
    assert plan.held == budget
    if options.policy in ("block-joint", "paged-eviction"):
        assert plan.moves == 0
        assert plan_row(keep, 8, "free").held == budget
    if options.policy == "block-swap":
        assert plan.moves <= 0.05 * keep.size
    tail = (tokens - 1) // 8
    assert plan.blocks[-1] == tail  # the next token goes where it would have gone


@pytest.mark.parametrize("policy", ["block-joint", "block-swap", "blend"])
@given(seed=st.integers(0, 30))
def test_sinks_and_recent_tokens_stay_through_packs(policy, seed):
    """Evict four times, with 5 new tokens before each, in rows whose slots hold tokens of any order."""
    options = Options(policy, 27, **JOINT, buffer=5)
    generator = np.random.default_rng(seed)
    positions = np.broadcast_to(np.arange(45, dtype=np.int32), (2, 3, 45))
    for event in range(4):
        live = np.ones(positions.shape, np.bool_)
        keep = kept(options, generator.random(positions.shape, np.float32), positions, live, event)
        plan = plan_row(keep, 8, "pack")
        assert plan.live.all()
        positions = plan.carry(positions, -1)
        newest = 45 + 5 * event
        for layer, head in np.ndindex(2, 3):
            assert {0, 1, *range(newest - 9, newest)} <= set(positions[layer, head].tolist())
        fresh = np.arange(newest, newest + 5, dtype=np.int32)
        positions = np.concatenate([positions, np.broadcast_to(fresh, (2, 3, 5))], axis=-1)


@given(st.integers(1, 40), st.integers(0, 20), st.integers(1, 60), st.integers(1, 16))
def test_what_always_stays_fits_into_any_budget_that_is_not_refused(more, sinks, recent, block_size):
    options = Options("block-joint", more + sinks + recent, sinks=sinks, recent=recent, scores="h2o")
    try:
        check_blocks(options, block_size)
    except InputError as refusal:
        assert "\n" not in str(refusal)
        return
    for tokens in range(options.budget + 1, options.budget + 2 + 2 * block_size):
        scores, positions, live = row(0, (1, 1, tokens))
        keep = select(options, scores, positions, live, block_size, 0)
        assert keep[..., :sinks].all()
        assert keep[..., -recent:].all()


@given(seed=st.integers(0, 50))
def test_token_joint_goes_by_tokens_wherever_they_lie(seed):
    options = Options("token-joint", 26, **JOINT)
    scores, positions, live = row(seed, shuffled=True)
    in_order = np.empty_like(scores)
    np.put_along_axis(in_order, positions.astype(int), scores, axis=-1)
    expected = policies.get("token-joint", sinks=2, recent=9).select(in_order, 26, BlockLayout(8)).array
    found = np.take_along_axis(kept(options, scores, positions, live), np.argsort(positions, axis=-1), -1)
    assert np.array_equal(found, expected)


def test_last_queries_are_averaged_over_their_own_tokens_too():
    scores = np.zeros((1, 1, 20), np.float32)
    scores[..., 19] = 10.0
    keep = kept(Options("block-wise", 3, scores="last-queries"), scores, *row(0, scores.shape)[1:])
    assert np.flatnonzero(keep[0, 0]).tolist() == [17, 18, 19]


@pytest.mark.parametrize("policy", [name for name in EQUAL if name not in ("block-wise", "random")])
@given(seed=st.integers(0, 50))
def test_the_place_of_a_token_in_the_row_does_not_matter(policy, seed):
    options = Options(policy, 12, **({"window": 4, "kernel": 3} if policy in LOOKING else {}))
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
    keep = kept(Options(policy, 12, **LOOKING.get(policy, {})), scores, positions, live)
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
