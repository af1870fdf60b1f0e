"""Policies that evict by block table: brute force over sets of blocks and of swaps, budgets, what stays."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvreclaim import InputError, audit, policies
from kvreclaim.bounds import freed_range, minimum_loss_frontier
from kvreclaim.layout import BLOCK_TABLES, PER_HEAD, PER_LAYER, BlockLayout, LayerGroup
from kvreclaim.occupancy import occupancy
from kvreclaim.policies import Blend, BlockJoint, BlockSwap, LowestImportance, MinimumLoss, TokenJoint

Scores = NDArray[np.float64]


@st.composite
def problems(draw: st.DrawFn, tokens: int = 40) -> tuple[Scores, BlockLayout, int, int, int]:
    """Continuous scores, a layout, sinks, recent tokens, and a budget that they fit into."""
    layers, heads, length = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, tokens))
    layout = BlockLayout(draw(st.integers(1, 9)), draw(st.sampled_from(BLOCK_TABLES)))
    sinks, recent = draw(st.integers(0, 6)), draw(st.integers(0, 9))
    always = int(protected(length, layout.block_size, sinks, recent).sum())
    budget = draw(st.integers(always, length))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    return generator.lognormal(size=(layers, heads, length)), layout, sinks, recent, budget


def protected(tokens: int, block_size: int, sinks: int, recent: int) -> NDArray[np.bool_]:
    """Tokens in a block that holds one of the first or last, token by token."""
    marked = {token // block_size for token in range(tokens) if token < sinks or token >= tokens - recent}
    return np.array([token // block_size in marked for token in range(tokens)])


def shares(scores: Scores, stays: NDArray[np.bool_]) -> Scores:
    """Each head's scores by its sum over what may go."""
    totals = scores[..., ~stays].sum(axis=-1, keepdims=True)
    return scores / np.where(totals > 0, totals, 1)


@given(problems(tokens=12), st.sampled_from(["mean", "max"]))
def test_no_set_of_whole_blocks_keeps_more(
    problem: tuple[Scores, BlockLayout, int, int, int], heads: str
) -> None:
    """Of all sets of so many whole blocks that may go, block-joint evicts that of the least joint score."""
    scores, layout, sinks, recent, budget = problem
    size, tokens = layout.block_size, scores.shape[-1] // layout.block_size * layout.block_size
    if tokens == 0:
        return
    scores, stays = scores[..., :tokens], protected(tokens, size, sinks, recent)
    free = [block for block in range(tokens // size) if not stays[block * size]]
    gone = min((tokens - min(budget, tokens)) // size, len(free))
    mask = BlockJoint(heads=heads, sinks=sinks, recent=recent).select(scores, tokens - gone * size, layout)
    compared = shares(scores, stays)
    for rows in layout.rows_of_tables(*scores.shape[:2]):
        joint = compared.reshape(-1, tokens)[rows].reshape(len(rows), -1, size).mean(-1)
        value = joint.mean(0) if heads == "mean" else joint.max(0)
        least = min(sum(value[list(chosen)]) for chosen in combinations(free, gone))
        live = mask.array.reshape(-1, tokens)[rows]
        assert np.all(live == live[0])
        dead = [block for block in free if not live[0, block * size]]
        assert not live[0].reshape(-1, size)[dead].any()
        assert len(dead) == gone
        assert sum(value[dead]) == pytest.approx(least)


@given(problems(), st.sampled_from(["mean", "max", "rank"]), st.sampled_from(["mean", "max", "top"]))
def test_reclaim_is_the_budget_to_the_block(
    problem: tuple[Scores, BlockLayout, int, int, int], heads: str, tokens: str
) -> None:
    scores, layout, sinks, recent, budget = problem
    mask = BlockJoint(heads, tokens, sinks=sinks, recent=recent).select(scores, budget, layout)
    assert np.all(mask.array.sum(axis=-1) == budget)
    assert mask.array[..., protected(scores.shape[-1], layout.block_size, sinks, recent)].all()
    evicted, free = scores.shape[-1] - budget, (occupancy(mask, layout) == 0).sum(axis=1)
    least, partial = evicted // layout.block_size, scores.shape[-1] % layout.block_size
    # A partial last block, where it may go, frees a block for fewer tokens.
    most = least if recent or not partial else max(least, 1 + (evicted - partial) // layout.block_size)
    assert np.all((least <= free) & (free <= most))


@pytest.mark.parametrize("heads", ["mean", "max", "rank"])
@pytest.mark.parametrize("tokens", ["mean", "max", "top"])
@given(seed=st.integers(0, 2**32), kv_heads=st.integers(1, 4), share=st.floats(0, 1), data=st.data())
def test_the_order_of_heads_changes_nothing(
    heads: str, tokens: str, seed: int, kv_heads: int, share: float, data: st.DataObject
) -> None:
    """On scores that are added and divided without rounding: each head's sum is a power of two."""
    scores = np.random.default_rng(seed).integers(0, 64, (2, kv_heads, 32)).astype(float)
    scores[..., 0] += 4096 - scores.sum(axis=-1)
    order = data.draw(st.permutations(range(kv_heads)))
    for kind in (BlockJoint, TokenJoint):
        policy = kind(heads, tokens, sinks=0, recent=0)
        once = policy.select(scores, round(32 * share), BlockLayout(4)).array
        again = policy.select(scores[:, order], round(32 * share), BlockLayout(4)).array
        assert np.array_equal(once[:, order], again)


def test_heads_and_tokens_are_joined_as_they_say() -> None:
    """Both heads sum up to 20. Blocks of two: the best on average, for one head, by best tokens."""
    scores = np.array([[[4.0, 4, 9, 0, 3, 0], [4, 4, 0, 0, 7, 5]]])
    layout = BlockLayout(2)

    def kept(heads: str, tokens: str, top: int = 2) -> list[int]:
        policy = BlockJoint(heads, tokens, top, sinks=0, recent=0)
        return np.flatnonzero(policy.select(scores, 2, layout).array[0, 0]).tolist()

    assert kept("mean", "mean") == [0, 1]  # 8 + 8, before 9 + 0 and 3 + 12
    assert kept("max", "max") == [2, 3]  # 9, before 4 and 7
    assert kept("max", "mean") == [4, 5]  # 12, before 8 and 9
    assert kept("mean", "max") == [4, 5]  # 3 + 7, before 4 + 4 and 9 + 0
    assert kept("mean", "top", 1) == kept("mean", "max")
    assert kept("mean", "top", 2) == kept("mean", "top", 9) == kept("mean", "mean")
    ranks = np.array([[[1.0, 2, 3], [1, 100, 2], [5, 6, 1]]])  # 0 1 2, 0 2 1, 1 2 0
    by_rank = BlockJoint("rank", sinks=0, recent=0).select(ranks, 1, BlockLayout(1))
    assert by_rank.array[0, 0].tolist() == [False, True, False]


def test_a_partial_last_block_is_a_block() -> None:
    scores = np.array([4.0, 4, 1, 1, 3, 3, 2])
    layout = BlockLayout(2)
    policy = BlockJoint(sinks=0, recent=0)
    assert np.flatnonzero(policy.select(scores, 5, layout).array).tolist() == [0, 1, 4, 5, 6]
    assert np.flatnonzero(policy.select(scores, 4, layout).array).tolist() == [0, 1, 4, 5]
    assert np.flatnonzero(policy.select(scores, 3, layout).array).tolist() == [0, 1, 5]
    kept = BlockJoint(sinks=0, recent=1).select(scores, 3, layout).array
    assert np.flatnonzero(kept).tolist() == [0, 1, 6]


def test_each_kind_of_table_decides_for_itself() -> None:
    scores = np.random.default_rng(1).lognormal(size=(3, 2, 80))
    policy = BlockJoint(sinks=1, recent=4)
    shared = policy.select(scores, 40, BlockLayout(8)).array
    layered = policy.select(scores, 40, BlockLayout(8, PER_LAYER)).array
    per_head = policy.select(scores, 40, BlockLayout(8, PER_HEAD)).array
    assert np.all(shared == shared[0, 0])
    for layer in range(3):
        assert np.array_equal(layered[layer], policy.select(scores[layer], 40, BlockLayout(8)).array[0])
        for head in range(2):
            alone = policy.select(scores[layer, head], 40, BlockLayout(8)).array[0, 0]
            assert np.array_equal(per_head[layer, head], alone)
    groups = (LayerGroup((0, 2)), LayerGroup((1,), window=64))
    hybrid = policy.select(scores, 40, BlockLayout(8, groups=groups)).array
    assert np.array_equal(hybrid[[0, 2]], policy.select(scores[[0, 2]], 40, BlockLayout(8)).array)
    assert np.array_equal(hybrid[[1]], policy.select(scores[[1]], 40, BlockLayout(8)).array)


@given(problems())
def test_token_joint_keeps_the_best_tokens_for_all(
    problem: tuple[Scores, BlockLayout, int, int, int],
) -> None:
    scores, layout, sinks, recent, budget = problem
    stays = protected(scores.shape[-1], layout.block_size, sinks, recent)
    mask = TokenJoint(sinks=sinks, recent=recent).select(scores, budget, layout).array
    compared = shares(scores, stays).reshape(-1, scores.shape[-1])
    for rows in layout.rows_of_tables(*scores.shape[:2]):
        live = mask.reshape(-1, scores.shape[-1])[rows]
        joint = compared[rows].mean(0)
        assert np.all(live == live[0])
        assert live[0, stays].all()
        assert joint[~stays & live[0]].min(initial=np.inf) >= joint[~live[0]].max(initial=0)
    assert audit(mask, layout).compaction.min_blocks == len(
        layout.rows_of_tables(*scores.shape[:2])
    ) * layout.blocks(budget)


@given(problems(), st.floats(0, 1))
def test_a_blend_packs_into_its_budget(
    problem: tuple[Scores, BlockLayout, int, int, int], beta: float
) -> None:
    scores, layout, sinks, recent, budget = problem
    mask = Blend(beta=beta, sinks=sinks, recent=recent).select(scores, budget, layout)
    packing = audit(mask, layout).packing
    tables = len(layout.rows_of_tables(*scores.shape[:2]))
    assert packing.blocks_needed == tables * layout.blocks(budget)
    assert np.all(mask.array.sum(axis=-1) == budget)
    assert mask.array[..., protected(scores.shape[-1], layout.block_size, sinks, recent)].all()


def test_a_blend_of_nothing_or_everything() -> None:
    scores = np.random.default_rng(2).lognormal(size=(2, 3, 64))
    layout = BlockLayout(8)
    none = Blend(beta=0.0, sinks=0, recent=0).select(scores, 32, layout).array
    assert np.array_equal(none, BlockJoint(sinks=0, recent=0).select(scores, 32, layout).array)
    every = Blend(beta=1.0, sinks=0, recent=0).select(scores, 32, layout).array
    assert np.array_equal(every, LowestImportance().select(scores, 32).array)
    quarter = Blend(beta=0.25, sinks=0, recent=0).select(scores, 32, layout).array
    in_place = BlockJoint(sinks=0, recent=0).select(scores, 24, layout).array
    assert np.all(quarter[in_place])
    for row, base, values in zip(
        quarter.reshape(6, 64), in_place.reshape(6, 64), scores.reshape(6, 64), strict=True
    ):
        assert values[row & ~base].min() >= values[~row].max()


@given(st.integers(0, 2**32), st.integers(0, 4))
def test_no_swaps_gain_more(seed: int, most: int) -> None:
    """Against every choice of four tokens for each of two heads, so many of them outside the kept blocks."""
    scores = np.random.default_rng(seed).lognormal(size=(1, 2, 6))
    layout = BlockLayout(2)
    base = BlockJoint(sinks=0, recent=0).select(scores, 4, layout).array
    mask = BlockSwap(copies=most / scores.size, sinks=0, recent=0).select(scores, 4, layout).array
    compared = shares(scores, np.zeros(6, bool))[0]
    assert np.count_nonzero(mask & ~base) <= most
    best = max(
        sum(values[list(kept)].sum() for values, kept in zip(compared, chosen, strict=True))
        for chosen in product(combinations(range(6), 4), repeat=2)
        if sum(not base[0, head, token] for head, kept in enumerate(chosen) for token in kept) <= most
    )
    assert compared[mask[0]].sum() == pytest.approx(best)


@given(problems(), st.floats(0, 0.2))
def test_swaps_stay_within_their_budget(
    problem: tuple[Scores, BlockLayout, int, int, int], copies: float
) -> None:
    scores, layout, sinks, recent, budget = problem
    mask = BlockSwap(copies=copies, sinks=sinks, recent=recent).select(scores, budget, layout)
    packing = audit(mask, layout).packing
    tables = len(layout.rows_of_tables(*scores.shape[:2]))
    assert packing.blocks_needed == tables * layout.blocks(budget)
    if scores.shape[-1] % layout.block_size == 0:  # else a partial last block may have to move as well
        assert packing.moved_pairs <= copies * scores.size
    assert np.all(mask.array.sum(axis=-1) == budget)
    assert mask.array[..., protected(scores.shape[-1], layout.block_size, sinks, recent)].all()


def test_paged_eviction_is_one_block_at_a_time() -> None:
    """Blocks read one by one; whenever the budget is exceeded, the lowest mean before the newest leaves."""
    scores = np.random.default_rng(5).lognormal(size=(2, 2, 48))
    means = scores.sum(axis=(0, 1)).reshape(-1, 4).mean(axis=1)
    held: list[int] = []
    for block in range(12):
        held.append(block)
        if len(held) > 5:
            held.remove(min(held[:-1], key=lambda one: means[one]))
    mask = policies.get("paged-eviction").select(scores, 20, BlockLayout(4)).array
    assert np.flatnonzero(mask[1, 1, ::4]).tolist() == held


@given(st.integers(0, 2**32), st.floats(0, 1), st.integers(1, 6), st.floats(0, 1))
def test_minimum_loss_frees_its_share(seed: int, share: float, block_size: int, evicted: float) -> None:
    importance = np.random.default_rng(seed).lognormal(size=30)
    gone = round(evicted * 30)
    most = freed_range(30, gone, block_size)[1]
    mask = MinimumLoss(share=share).select(importance, 30 - gone, BlockLayout(block_size)).array[0, 0]
    point = minimum_loss_frontier(importance, gone, block_size, round(share * most))
    lost = importance[~mask].sum() / importance.sum()
    assert lost == pytest.approx(point.loss)
    assert int((occupancy(mask, BlockLayout(block_size)) == 0).sum()) >= round(share * most)


def test_reclaimability_aware_loses_hardly_more_than_the_frontier() -> None:
    """The published policy at beta .5 against the frontier's point of the same reclaim."""
    importance = np.random.default_rng(0).lognormal(size=8192)
    layout = BlockLayout(16)
    aware = policies.get("reclaimability-aware").select(importance, 4096, layout)
    share = audit(aware, layout).free_blocks / 256
    least = MinimumLoss(share=share).select(importance, 4096, layout)
    losses = [importance[~mask.array[0, 0]].sum() / importance.sum() for mask in (least, aware)]
    assert audit(least, layout).free_blocks == audit(aware, layout).free_blocks
    assert losses[0] <= losses[1] <= losses[0] + 0.0012


def test_scores_of_nothing_are_no_reason_to_fail() -> None:
    for name in ("block-joint", "token-joint", "blend", "block-swap"):
        policy = policies.get(name, sinks=0, recent=0)
        assert policy.select(np.zeros((2, 2, 10)), 4, BlockLayout(4)).array.sum() == 16
    assert MinimumLoss().select(np.zeros(10), 4, BlockLayout(4)).array.sum() == 4


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (lambda: BlockJoint().select(np.ones(64), 32), "layout"),
        (lambda: TokenJoint().select(np.ones(64), 32), "layout"),
        (lambda: BlockJoint().select(np.ones(256), 64, BlockLayout(16)), "smaller block size"),
        (
            lambda: BlockSwap(recent=8).select(np.ones(4096), 1024, BlockLayout(1024)),
            "in whole blocks of 1024",
        ),
        (lambda: BlockJoint(heads="sum"), "mean, max, rank"),
        (lambda: BlockJoint(tokens="all"), "mean, max, top"),
        (lambda: BlockJoint(top=0), "top"),
        (lambda: BlockJoint(sinks=-1), "sinks"),
        (lambda: BlockJoint(recent=-1), "recent"),
        (lambda: Blend(beta=1.5), "1.5"),
        (lambda: BlockSwap(copies=-0.1), "-0.1"),
        (lambda: MinimumLoss(share=2.0), "2.0"),
        (lambda: BlockJoint().select([np.nan] * 99, 90, BlockLayout(4)), "nan"),
    ],
)
def test_bad_input_gets_one_clear_line(refused, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=says) as error:
        refused()
    assert "\n" not in str(error.value)


BY_BLOCK = ("block-joint", "block-swap", "blend", "token-joint", "paged-eviction", "block-wise")


@pytest.mark.parametrize("name", BY_BLOCK)
def test_narrow_scores_are_added_up_without_overflow(name: str) -> None:
    narrow = np.random.default_rng(0).uniform(0, 9000, (2, 3, 320)).astype(np.float16)
    masks = [
        policies.get(name).select(scores, 160, BlockLayout(16)).array
        for scores in (narrow, narrow.astype(np.float64))
    ]
    np.testing.assert_array_equal(*masks)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("heads", ["mean", "max", "rank"])
@pytest.mark.parametrize("name", ["block-joint", "token-joint", "block-swap", "blend"])
def test_what_is_protected_stays_beside_the_highest_scores_there_are(
    name: str, heads: str, dtype: type[np.floating]
) -> None:
    scores = np.random.default_rng(0).random((2, 3, 320)).astype(dtype)
    scores[:, :, 64:256] = np.finfo(dtype).max
    kept = policies.get(name, heads=heads, sinks=4, recent=16).select(scores, 160, BlockLayout(16)).array
    assert kept[:, :, :4].all()
    assert kept[:, :, -16:].all()
