"""Scores tile by tile against the whole matrix, and rows over a request's life."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from kvreclaim.runtimes.vllm import scoring  # noqa: E402  # these import torch
from kvreclaim.runtimes.vllm.cache import LayerCache  # noqa: E402
from kvreclaim.runtimes.vllm.observer import LayerHook  # noqa: E402
from kvreclaim.runtimes.vllm.options import Options  # noqa: E402
from kvreclaim.runtimes.vllm.plan import plan_row  # noqa: E402
from kvreclaim.runtimes.vllm.rowstate import RowState, Shape  # noqa: E402
from kvreclaim.runtimes.vllm.selection import _average  # noqa: E402
from kvreclaim.scores.attention import trailing_attention  # noqa: E402
from kvreclaim.scores.redundancy import rkv_scores  # noqa: E402

KV_HEADS, GROUP, WIDTH = 2, 3, 8
SCALE = WIDTH**-0.5


def drawn(seed, tokens, new, shuffled=False, dropped=0.0):
    """Queries of the last tokens, keys and values in any order, their positions, and who is seen."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(new, KV_HEADS * GROUP, WIDTH, generator=generator)
    keys, values = torch.randn(2, KV_HEADS, tokens, WIDTH, generator=generator)
    positions = torch.arange(tokens).repeat(KV_HEADS, 1)
    if shuffled:
        positions = torch.stack([torch.randperm(tokens, generator=generator) for _ in range(KV_HEADS)])
    seen = torch.rand(KV_HEADS, tokens, generator=generator) >= dropped
    seen[positions == 0] = True
    return queries, torch.arange(tokens - new, tokens), keys, values, positions, seen


def dense(queries, at, keys, positions, seen):
    """Attention weights [kv_heads, group, queries, slots], all at once."""
    by_head = queries.double().view(len(queries), KV_HEADS, GROUP, WIDTH).permute(1, 2, 0, 3)
    logits = by_head @ keys.double()[:, None].transpose(2, 3) * SCALE
    allowed = (positions[:, None, None] <= at[:, None]) & seen[:, None, None]
    return logits.masked_fill(~allowed, -torch.inf).softmax(-1)


@given(
    seed=st.integers(0, 20),
    tokens=st.integers(1, 60),
    part=st.floats(0, 1),
    tiles=st.sampled_from([(4, 7), (16, 16), (128, 1024)]),
    shuffled=st.booleans(),
    dropped=st.sampled_from([0.0, 0.4]),
)
def test_received_attention_is_the_matrix_summed_over_its_queries(
    seed, tokens, part, tiles, shuffled, dropped
):
    queries, at, keys, _, positions, seen = drawn(seed, tokens, max(1, int(part * tokens)), shuffled, dropped)
    received = torch.ones(KV_HEADS, tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "QUERY_TILE", tiles[0])
        patch.setattr(scoring, "KEY_TILE", tiles[1])
        scoring.add_received_attention(received, queries, at, keys.transpose(1, 2), positions, seen, SCALE)
    expected = 1 + dense(queries, at, keys, positions, seen).sum(2).mean(1)
    torch.testing.assert_close(received.double(), expected, rtol=1e-4, atol=1e-5)


@given(st.integers(0, 20), st.booleans())
def test_window_attention_is_the_mean_over_its_queries(seed, shuffled):
    queries, at, keys, _, positions, seen = drawn(seed, 40, 6, shuffled, 0.3)
    found = scoring.window_attention(queries, at, keys.transpose(1, 2), positions, seen, SCALE)
    expected = dense(queries, at, keys, positions, seen).mean(2)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)


@given(st.integers(0, 20), st.integers(1, 60), st.booleans())
def test_trailing_attention_is_that_of_the_measurements(seed, looking, shuffled):
    queries, at, keys, _, positions, _ = drawn(seed, 40, min(looking, 40), shuffled)
    ring = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))
    found = scoring.trailing_attention(queries[ring], at[ring], keys.transpose(1, 2), positions, None, SCALE)
    order = positions.argsort(-1)
    smooth = _average(found.gather(1, order).numpy()[None], 5, 0)[0]
    in_order = keys.gather(1, order[..., None].expand(keys.shape))
    expected = trailing_attention(queries.transpose(0, 1), in_order, SCALE, looking, 5)
    np.testing.assert_allclose(smooth, expected, rtol=1e-4, atol=1e-6)


@given(st.integers(0, 20), st.sampled_from(["free", "pack"]))
def test_rkv_scores_of_a_row_are_those_of_its_live_pairs_in_order(seed, mode):
    generator = torch.Generator().manual_seed(seed)
    cache = LayerCache(torch.randn(6, KV_HEADS, 4, 2 * WIDTH, generator=generator))
    hook = LayerHook(0, cache, SCALE)
    hook.options = Options("rkv", 9, window=3, kernel=3)
    row, blocks = RowState(Shape(1, KV_HEADS, KV_HEADS * GROUP, WIDTH), 20), torch.tensor([4, 0, 2, 1, 5])
    numbers = np.random.default_rng(seed)
    keep = np.ones((1, KV_HEADS, 20), np.bool_)
    for head in keep[0]:
        head[numbers.permutation(17)[:6]] = False
    plan = plan_row(keep, 4, mode)
    cache.move(blocks, *(torch.from_numpy(part) for part in (plan.head, plan.source, plan.destination)))
    row.evicted(plan, 20, masked=False)
    blocks = blocks[torch.from_numpy(plan.blocks)]
    computed = min(22, 20 + len(blocks) * 4 - plan.held)
    queries = torch.randn(3, KV_HEADS * GROUP, WIDTH, generator=generator)
    row.remember(0, queries, row.places_of_queries(3, 3, computed))
    found = hook.scores(row, computed, blocks)
    positions, live = row.positions_at(computed)[0], row.live_at(computed)[0]
    keys = cache.keys(blocks, row.filled(computed)).transpose(1, 2)
    order = [
        sorted(np.flatnonzero(alive), key=lambda slot, at=at: at[slot])
        for alive, at in zip(live, positions, strict=True)
    ]
    in_order = torch.stack([keys[head, slots] for head, slots in enumerate(order)])
    expected = rkv_scores(queries.transpose(0, 1), in_order, SCALE, 3, 3, 0.1)
    for head, slots in enumerate(order):
        torch.testing.assert_close(found[head, slots], expected[head])
        assert found[head].sum() == pytest.approx(float(expected[head].sum()), rel=1e-4)


@given(st.integers(0, 20), st.integers(1, 12))
def test_masked_attention_is_the_matrix_times_the_values(seed, new):
    queries, at, keys, values, positions, seen = drawn(seed, 30, new, dropped=0.5)
    found = scoring.masked_attention(queries, keys.transpose(1, 2), values, seen, SCALE)
    expected = dense(queries, at, keys, positions, seen) @ values.double()[:, None]
    expected = expected.permute(2, 0, 1, 3).reshape(new, -1, WIDTH)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_row_s_cache_is_moved_as_planned():
    generator = np.random.default_rng(0)
    cache = torch.from_numpy(generator.random((9, KV_HEADS, 4, 2 * WIDTH), np.float32))
    layer, row = LayerCache(cache), torch.tensor([7, 2, 5])
    keys, values = layer.keys(row, 11).transpose(1, 2).clone(), layer.values(row, 11).clone()
    keep = generator.random((1, KV_HEADS, 11)) < 0.5
    keep[..., 0] = True
    plan = plan_row(keep, 4, "pack")
    move = [torch.from_numpy(part) for part in (plan.head, plan.source, plan.destination)]
    layer.move(row, *move)
    staying = row[torch.from_numpy(plan.blocks)]
    for head in range(KV_HEADS):
        for before, after in (
            (keys, layer.keys(staying, plan.held).transpose(1, 2)),
            (values, layer.values(staying, plan.held)),
        ):
            alive = after[head][torch.from_numpy(plan.live[0, head])]
            expected = before[head][torch.from_numpy(keep[0, head])]
            assert sorted(map(tuple, alive.tolist())) == sorted(map(tuple, expected.tolist()))


@given(st.integers(0, 30), st.sampled_from(["free", "pack", "mask"]))
def test_a_row_knows_who_is_where_through_evictions(seed, mode):
    generator = np.random.default_rng(seed)
    row, computed = RowState(Shape(1, 2, 2, 4), 20), 20
    alive = [set(range(20)), set(range(20))]
    for event in range(3):
        positions, live = row.positions_at(computed), row.live_at(computed)
        assert positions.shape[-1] == row.filled(computed)
        for head in range(2):
            assert set(positions[0, head][live[0, head]].tolist()) == alive[head]
        keep = live & (generator.random(live.shape) < 0.7)
        keep[..., -1] = True
        alive = [set(positions[0, head][keep[0, head]].tolist()) for head in range(2)]
        row.evicted(plan_row(keep, 4, mode), computed, masked=mode == "mask")
        assert (row.event, row.since) == (event + 1, computed)
        computed += 5
        alive = [{*tokens, *range(computed - 5, computed)} for tokens in alive]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_the_latest_queries_are_remembered(chunks):
    row, computed, window = RowState(Shape(1, 1, 1, 1), sum(chunks)), 0, 6
    for chunk in chunks:
        computed += chunk
        queries = torch.arange(computed - chunk, computed).float().view(-1, 1, 1)
        row.remember(0, queries, row.places_of_queries(chunk, window, computed))
    found, at = row.latest_queries(0)
    assert sorted(at.tolist()) == list(range(max(0, computed - window), computed))
    assert found.flatten().tolist() == at.tolist()


def test_a_query_whose_pairs_are_all_gone_pays_nothing():
    """A remembered query may be older than every pair that was kept since."""
    queries, _, keys, _, _, seen = drawn(0, 8, 4)
    at, positions = torch.tensor([2, 3, 11, 12]), torch.arange(5, 13).repeat(KV_HEADS, 1)
    found = scoring.window_attention(queries, at, keys.transpose(1, 2), positions, seen | True, SCALE)
    latest = scoring.window_attention(
        queries[2:], at[2:], keys.transpose(1, 2), positions, seen | True, SCALE
    )
    torch.testing.assert_close(found, latest / 2)
