"""Policies: plain loops as oracles, exact budgets, decisions by block table, what they refuse."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvreclaim import policies
from kvreclaim.errors import InputError
from kvreclaim.layout import PER_HEAD, PER_LAYER, BlockLayout, LayerGroup
from kvreclaim.occupancy import occupancy
from kvreclaim.policies import (
    H2O,
    BlockWise,
    LowestImportance,
    RandomTokens,
    ReclaimabilityAware,
    SnapKV,
    StreamingLLM,
)

WHOLE_BLOCKS = ("block-wise", "reclaimability-aware")


@st.composite
def score_arrays(draw: st.DrawFn) -> NDArray[np.float64]:
    """Scores ``[layers, kv_heads, tokens]``, with ties as often as not."""
    shape = tuple(draw(st.integers(1, top)) for top in (2, 3, 40))
    levels = draw(st.sampled_from([3, 1000]))
    return np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, levels, shape).astype(float)


def test_names() -> None:
    assert policies.names() == (
        "random",
        "lowest-importance",
        "block-wise",
        "reclaimability-aware",
        "streaming-llm",
        "h2o",
        "snapkv",
    )


def test_titles() -> None:
    titles = {name: policies.get(name).title for name in policies.names()}
    assert len(set(titles.values())) == len(titles)
    assert (titles["streaming-llm"], titles["h2o"]) == ("StreamingLLM", "H2O")


@pytest.mark.parametrize("name", policies.names())
@given(scores=score_arrays(), share=st.floats(0, 1), block_size=st.integers(1, 9), data=st.data())
def test_each_head_keeps_exactly_its_budget(
    name: str, scores: NDArray[np.float64], share: float, block_size: int, data: st.DataObject
) -> None:
    before = scores.copy()
    budget = round(share * scores.shape[-1])
    layout = BlockLayout(block_size, data.draw(st.sampled_from(["shared", "per_layer", "per_head"])))
    mask = policies.get(name).select(scores, budget, layout)
    assert mask.array.shape == scores.shape
    assert np.all(mask.array.sum(axis=-1) == budget)
    assert mask.name == mask.metadata.policy == name
    assert mask.metadata.ratio == pytest.approx(1 - budget / scores.shape[-1])
    assert np.array_equal(scores, before)


@pytest.mark.parametrize("name", policies.names())
@given(scores=score_arrays(), block_size=st.integers(1, 9), data=st.data())
def test_a_sweep_is_its_selections(
    name: str, scores: NDArray[np.float64], block_size: int, data: st.DataObject
) -> None:
    budgets = data.draw(st.lists(st.integers(0, scores.shape[-1]), max_size=4))
    policy, layout = policies.get(name), BlockLayout(block_size)
    masks = policy.sweep(scores, budgets, layout)
    assert len(masks) == len(budgets)
    for mask, budget in zip(masks, budgets, strict=True):
        assert np.array_equal(mask.array, policy.select(scores, budget, layout).array)


@pytest.mark.parametrize("name", ["random", "lowest-importance", "block-wise", "streaming-llm"])
@given(scores=score_arrays(), block_size=st.integers(1, 9))
def test_evictions_are_nested(name: str, scores: NDArray[np.float64], block_size: int) -> None:
    masks = policies.get(name).sweep(scores, range(scores.shape[-1] + 1), BlockLayout(block_size))
    assert all(np.all(small.array <= large.array) for small, large in pairwise(masks))


def evict_lowest(live: list[bool], scores: list[float], count: int) -> None:
    """Evict the lowest live tokens, of equals the earlier."""
    for token in sorted((t for t in range(len(scores)) if live[t]), key=lambda t: (scores[t], t))[:count]:
        live[token] = False


def blocks_of(tokens: int, block_size: int) -> list[range]:
    return [range(start, min(tokens, start + block_size)) for start in range(0, tokens, block_size)]


def block_wise_by_hand(scores: list[float], budget: int, block_size: int) -> list[bool]:
    live, left = [True] * len(scores), len(scores) - budget
    for block in sorted(
        blocks_of(len(scores), block_size), key=lambda b: (sum(scores[t] for t in b), b.start)
    ):
        for token in sorted(block, key=lambda t: (scores[t], t))[:left]:
            live[token] = False
        left -= min(left, len(block))
    return live


def aware_by_hand(scores: list[float], budget: int, block_size: int, beta: float) -> list[bool]:
    live, left = [True] * len(scores), len(scores) - budget
    single = int(beta * left)
    evict_lowest(live, scores, single)
    left -= single
    residual = [
        (sum(scores[t] for t in block if live[t]), block.start, block)
        for block in blocks_of(len(scores), block_size)
    ]
    for _, _, block in sorted(residual, key=lambda entry: entry[:2]):
        held = [token for token in block if live[token]]
        if len(held) > left:
            break
        for token in held:
            live[token] = False
        left -= len(held)
    evict_lowest(live, scores, left)
    return live


@given(scores=score_arrays(), share=st.floats(0, 1), block_size=st.integers(1, 9))
def test_block_wise_is_what_the_loop_says(scores: NDArray[np.float64], share: float, block_size: int) -> None:
    budget = round(share * scores.shape[-1])
    mask = BlockWise().select(scores, budget, BlockLayout(block_size, PER_HEAD))
    for row, kept in zip(
        scores.reshape(-1, scores.shape[-1]), mask.array.reshape(-1, scores.shape[-1]), strict=True
    ):
        assert kept.tolist() == block_wise_by_hand(row.tolist(), budget, block_size)


@given(scores=score_arrays(), share=st.floats(0, 1), block_size=st.integers(1, 9), beta=st.floats(0, 1))
def test_reclaimability_aware_is_what_the_loop_says(
    scores: NDArray[np.float64], share: float, block_size: int, beta: float
) -> None:
    budget = round(share * scores.shape[-1])
    mask = ReclaimabilityAware(beta=beta).select(scores, budget, BlockLayout(block_size, PER_HEAD))
    for row, kept in zip(
        scores.reshape(-1, scores.shape[-1]), mask.array.reshape(-1, scores.shape[-1]), strict=True
    ):
        assert kept.tolist() == aware_by_hand(row.tolist(), budget, block_size, beta)


@given(scores=score_arrays(), share=st.floats(0, 1))
def test_beta_one_is_lowest_importance(scores: NDArray[np.float64], share: float) -> None:
    budget = round(share * scores.shape[-1])
    aware = ReclaimabilityAware(beta=1.0).select(scores, budget, BlockLayout(4, PER_HEAD))
    assert np.array_equal(aware.array, LowestImportance().select(scores, budget).array)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.data())
def test_no_selection_loses_less_than_lowest_importance(scores: list[int], data: st.DataObject) -> None:
    budget = data.draw(st.integers(0, len(scores)))
    mask = LowestImportance().select(scores, budget)
    kept = max(sum(chosen) for chosen in combinations(scores, budget))
    assert np.dot(mask.array[0, 0], scores) == kept


@given(scores=score_arrays(), share=st.floats(0, 1), block_size=st.integers(1, 9))
def test_block_wise_frees_every_block_it_can_pay_for(
    scores: NDArray[np.float64], share: float, block_size: int
) -> None:
    tokens = scores.shape[-1] - scores.shape[-1] % block_size
    if tokens == 0:
        return
    budget = round(share * tokens)
    layout = BlockLayout(block_size)
    mask = BlockWise().select(scores[..., :tokens], budget, layout)
    free = int((occupancy(mask, layout) == 0).sum())
    assert free == (tokens - budget) // block_size


@pytest.mark.parametrize("name", WHOLE_BLOCKS)
def test_whole_blocks_are_decided_once_for_each_block_table(name: str) -> None:
    scores = np.random.default_rng(0).random((3, 2, 40))
    policy = policies.get(name)

    def patterns(layout: BlockLayout) -> NDArray[np.bool_]:
        return policy.select(scores, 17, layout).array

    shared = patterns(BlockLayout(4))
    assert np.all(shared == shared[0, 0])
    assert np.array_equal(
        shared[0, 0], policy.select(scores.sum(axis=(0, 1)), 17, BlockLayout(4)).array[0, 0]
    )
    per_layer = patterns(BlockLayout(4, PER_LAYER))
    assert np.all(per_layer == per_layer[:, :1])
    assert not np.all(per_layer == per_layer[:1])
    per_head = patterns(BlockLayout(4, PER_HEAD))
    assert not np.all(per_head == per_head[:, :1])
    grouped = patterns(BlockLayout(4, groups=(LayerGroup((0, 2)), LayerGroup((1,), window=16))))
    assert np.array_equal(grouped[0], grouped[2])
    assert not np.array_equal(grouped[0], grouped[1])


def test_streaming_llm_keeps_sinks_and_the_most_recent() -> None:
    mask = StreamingLLM(sinks=2).select(np.zeros(10), 5)
    assert np.flatnonzero(mask.array).tolist() == [0, 1, 7, 8, 9]
    assert np.flatnonzero(StreamingLLM(sinks=4).select(np.zeros(10), 3).array).tolist() == [0, 1, 2]
    assert np.flatnonzero(StreamingLLM(sinks=20).select(np.zeros(10), 9).array).tolist() == list(range(9))
    assert np.flatnonzero(StreamingLLM(sinks=0).select(np.zeros(10), 2).array).tolist() == [8, 9]


def test_h2o_keeps_a_window_and_the_best_before_it() -> None:
    scores = np.array([5.0, 1.0, 9.0, 3.0, 4.0, 100.0, 0.0, 0.0])
    assert np.flatnonzero(H2O().select(scores, 5).array).tolist() == [0, 2, 5, 6, 7]
    assert np.flatnonzero(H2O(recent_share=0.0).select(scores, 2).array).tolist() == [2, 5]
    assert np.flatnonzero(H2O(recent_share=1.0).select(scores, 2).array).tolist() == [6, 7]


def test_snapkv_takes_its_window_in_tokens_or_as_a_share() -> None:
    scores = np.array([5.0, 1.0, 9.0, 3.0, 4.0, 100.0, 0.0, 0.0])
    assert np.flatnonzero(SnapKV(window=1).select(scores, 3).array).tolist() == [2, 5, 7]
    assert np.flatnonzero(SnapKV(window=6).select(scores, 3).array).tolist() == [5, 6, 7]
    for budget in range(9):
        share = SnapKV(window=0.5).select(scores, budget).array
        assert np.array_equal(share, H2O(recent_share=0.5).select(scores, budget).array)


def test_of_equal_scores_the_earlier_token_is_evicted_first() -> None:
    equal = np.ones(6)
    assert np.flatnonzero(LowestImportance().select(equal, 2).array).tolist() == [4, 5]
    assert np.flatnonzero(H2O(recent_share=0.0).select(equal, 2).array).tolist() == [4, 5]
    assert np.flatnonzero(BlockWise().select(equal, 3, BlockLayout(2)).array).tolist() == [3, 4, 5]


def test_random_is_uniform_and_its_seed_decides() -> None:
    shape = np.zeros((1, 4000, 12))
    mask = RandomTokens(seed=3).select(shape, 3).array
    assert mask[0].mean(axis=0) == pytest.approx(np.full(12, 0.25), abs=0.035)  # 5 standard errors
    assert np.array_equal(mask, RandomTokens(seed=3).select(shape, 3).array)
    assert not np.array_equal(mask, RandomTokens(seed=(3, 1)).select(shape, 3).array)


def test_lower_ranks_and_other_types_are_taken() -> None:
    for scores in (
        [3, 1, 2],
        [[3, 1, 2]],
        np.array([3, 1, 2], np.float32),
        np.array([[[3, 1, 2]]], np.uint8),
    ):
        assert LowestImportance().select(scores, 1).array.tolist() == [[[True, False, False]]]


def test_budget_at_evicts_the_rounded_count() -> None:
    assert policies.budget_at(8192, 0.1) == 8192 - 819
    assert policies.budget_at(10, 0.0) == 10
    assert policies.budget_at(10, 1.0) == 0


def test_get_takes_the_policys_parameters() -> None:
    assert policies.get("reclaimability-aware", beta=0.25) == ReclaimabilityAware(beta=0.25)
    assert policies.get("streaming-llm") == StreamingLLM()


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (lambda: policies.get("pyramid"), "streaming-llm"),
        (lambda: policies.get("h2o", share=0.5), "recent_share"),
        (lambda: policies.get("lowest-importance", beta=0.5), "none"),
        (lambda: policies.get("h2o", recent_share=1.5), "1.5"),
        (lambda: policies.get("reclaimability-aware", beta=float("nan")), "nan"),
        (lambda: policies.get("snapkv", window=-1), "-1"),
        (lambda: policies.get("snapkv", window=1.5), "1.5"),
        (lambda: policies.get("streaming-llm", sinks=-1), "-1"),
        (lambda: policies.get("random", seed=-1), "-1"),
        (lambda: policies.get("random", seed=()), "()"),
        (lambda: policies.get("random", seed=1.5), "1.5"),
        (lambda: LowestImportance().select([1.0, np.nan], 1), "nan"),
        (lambda: LowestImportance().select([1.0, np.inf], 1), "inf"),
        (lambda: LowestImportance().select([[1.0, 2.0], [3.0, -0.5]], 1), "layer 0, head 1, token 1"),
        (lambda: LowestImportance().select([], 0), "shape"),
        (lambda: LowestImportance().select(np.ones((1, 1, 1, 1)), 0), "shape"),
        (lambda: LowestImportance().select(3.0, 0), "shape"),
        (lambda: LowestImportance().select([[1.0], [2.0, 3.0]], 1), "rectangular"),
        (lambda: LowestImportance().select(["a"], 1), "numbers"),
        (lambda: LowestImportance().select([True, False], 1), "bool"),
        (lambda: LowestImportance().select([1.0, 2.0], 3), "budget"),
        (lambda: LowestImportance().select([1.0, 2.0], -1), "budget"),
        (lambda: LowestImportance().select([1.0, 2.0], 0.5), "budget"),
        (lambda: BlockWise().select([1.0, 2.0], 1), "layout"),
        (lambda: ReclaimabilityAware().select([1.0, 2.0], 1), "layout"),
        (lambda: BlockWise().select([1.0, 2.0], 1, BlockLayout(2, groups=(LayerGroup((0, 1)),))), "layers"),
        (lambda: policies.budget_at(10, 1.1), "1.1"),
    ],
)
def test_bad_input_gets_one_clear_line(refused, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=says.replace("(", r"\(").replace(")", r"\)")) as error:
        refused()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["block-wise", "reclaimability-aware"])
def test_blocks_larger_than_memory(name: str) -> None:
    scores = np.random.default_rng(0).random((4, 4, 40))
    found, one_block = (
        policies.get(name).select(scores, 10, BlockLayout(size, PER_HEAD)).array for size in (2**31 - 1, 40)
    )
    assert np.array_equal(found, one_block)
