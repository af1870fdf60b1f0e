"""Presses on block-coherent policies: the policy's masks, on any scorer's scores; caches that get shorter."""

import numpy as np
import pytest
from small_models import (
    kvpress,
    prefill,
    prose_ids,
    random_ids,
    smollm2,
    tiny_gemma3,
    tiny_llama,
    torch,
    transformers,
)

from kvreclaim import InputError, audit, policies
from kvreclaim.capture.decoding import record_decoding
from kvreclaim.capture.prefill import capture
from kvreclaim.capture.presses import make
from kvreclaim.capture.presses.calibration import calibrate
from kvreclaim.capture.presses.decoding import make_decoding
from kvreclaim.capture.presses.joint_press import (
    BlendPress,
    BlockJointPress,
    BlockSwapPress,
    TokenJointPress,
)
from kvreclaim.capture.record import record
from kvreclaim.layout import BlockLayout
from kvreclaim.runtimes.vllm.plan import plan_row

AdaKVPress, KeyDiffPress = kvpress.AdaKVPress, kvpress.KeyDiffPress
SnapKVPress, StreamingLLMPress = kvpress.SnapKVPress, kvpress.StreamingLLMPress
ExpectedAttentionPress = kvpress.ExpectedAttentionPress
PRESSES = {
    "block-joint": BlockJointPress,
    "token-joint": TokenJointPress,
    "blend": BlendPress,
    "block-swap": BlockSwapPress,
}


def scores_of(press, model, ids):
    """Scores [layers, kv_heads, tokens] of a kvpress scorer, layer by layer, from its own hook."""
    seen = []

    class Noting(type(press)):
        def score(self, *args, **kwargs):
            seen.append(super().score(*args, **kwargs)[0])
            return seen[-1][None]

    noting = Noting(**{name: getattr(press, name) for name in type(press).__dataclass_fields__})
    with noting(model):
        prefill(model, ids)
    return torch.stack(seen).numpy()


@pytest.mark.parametrize("name", PRESSES)
@pytest.mark.parametrize("block_tables", ["shared", "per_layer", "per_head"])
def test_a_press_keeps_what_its_policy_selects(name, block_tables):
    model, ids = tiny_llama(), random_ids(150)
    press = PRESSES[name](SnapKVPress(0.5, window_size=16), 8, block_tables, recent=16)
    mask = capture(model, {"it": press}, ids).masks["it"]
    scores = scores_of(SnapKVPress(0.5, window_size=16), model, ids)
    expected = policies.get(name, recent=16).select(scores, 75, BlockLayout(8, block_tables))
    assert np.array_equal(mask.array, expected.array)
    assert mask.metadata.ratio == 0.5


@pytest.mark.parametrize("name", PRESSES)
@pytest.mark.parametrize("first", [True, False])
def test_beside_a_press_that_cuts_layer_by_layer_it_is_refused(name, first):
    model, ids = tiny_llama(), random_ids(96)
    joint, other = PRESSES[name](KeyDiffPress(0.5), 8, recent=8), kvpress.KnormPress(0.25)
    composed = kvpress.ComposedPress([joint, other] if first else [other, joint])
    with pytest.raises(InputError, match="pass it alone") as refused, composed(model):
        prefill(model, ids)
    assert "\n" not in str(refused.value)
    with joint(model):  # and it can be used again
        assert all(layer.keys.shape[2] == 48 for layer in prefill(model, ids).layers)


def test_beside_a_press_that_changes_keys_in_place_it_is_refused():
    model, ids = tiny_llama(), random_ids(96)
    joint = BlockJointPress(KeyDiffPress(0.5), 8, recent=8)
    composed = kvpress.ComposedPress([joint, kvpress.ThinKPress(0.5, window_size=8)])
    with pytest.raises(InputError, match="pass it alone"), composed(model):
        prefill(model, ids)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_found_where_it_is(value):
    class Broken(KeyDiffPress):
        def score(self, module, *args, **kwargs):
            scores = super().score(module, *args, **kwargs)
            scores[0, 1, 37] = value if module.layer_idx == 1 else scores[0, 1, 37]
            return scores

    model = tiny_llama()
    where = f"Broken scores {value} at layer 1, head 1, token 37"
    with pytest.raises(InputError, match=where), BlockJointPress(Broken(0.5), 8, recent=8)(model):
        prefill(model, random_ids(96))


@pytest.mark.parametrize("name", PRESSES)
def test_composed_alone_it_is_itself(name):
    model, ids = tiny_llama(), random_ids(96)
    caches = []
    for press in (PRESSES[name](KeyDiffPress(0.5), 8, recent=8) for _ in range(2)):
        with (kvpress.ComposedPress([press]) if caches else press)(model):
            caches.append(prefill(model, ids))
    for one, other in zip(*(cache.layers for cache in caches), strict=True):
        assert torch.equal(one.keys, other.keys)


def test_scores_below_nothing_are_raised_head_by_head():
    model, ids = tiny_llama(), random_ids(96)
    mask = capture(model, {"it": TokenJointPress(KeyDiffPress(0.5), 8, recent=8)}, ids).masks["it"]
    scores = scores_of(KeyDiffPress(0.5), model, ids)
    assert scores.min() < 0
    raised = scores - np.minimum(scores.min(axis=-1, keepdims=True), 0)
    expected = policies.get("token-joint", recent=8).select(raised, 48, BlockLayout(8))
    assert np.array_equal(mask.array, expected.array)


@pytest.mark.parametrize("name", PRESSES)
def test_the_cache_really_shrinks(name):
    model, ids, cache = tiny_llama(), random_ids(100), transformers.DynamicCache()
    press = PRESSES[name](StreamingLLMPress(0.4), recent=16)
    with record(model) as recorder, press(model):
        prefill(model, ids, cache)
    assert [layer.keys.shape[2] for layer in cache.layers] == [60] * 3
    again = capture(model, {"it": PRESSES[name](StreamingLLMPress(0.4), recent=16)}, ids).masks["it"]
    assert np.array_equal(recorder.keep_mask.array, again.array)
    with torch.no_grad():  # and the model goes on from it
        output = model(random_ids(1), past_key_values=cache, position_ids=torch.tensor([[100]]))
    assert output.logits.isfinite().all()
    assert cache.layers[0].keys.shape[2] == 61


def test_by_name():
    press = make("blend:beta=0.5:block_size=32:block_tables=per_layer:snapkv:window_size=32", 0.3, 500)
    assert press == BlendPress(SnapKVPress(0.3, window_size=32), 32, "per_layer", beta=0.5)
    assert press.compression_ratio == 0.3


def test_only_full_layers_of_a_hybrid_model_are_evicted_from():
    model, ids = tiny_gemma3(), random_ids(96)
    press = BlockJointPress(SnapKVPress(0.5, window_size=8), recent=8)
    mask = capture(model, {"it": press}, ids).masks["it"].array
    assert mask[[0, 2]].all()
    assert np.array_equal(mask[1], mask[3])
    assert mask[1].sum() == 48


def test_expected_attention_on_gemma_by_brute_force():
    """Each full layer's mean query and covariance, rotated by its own rates to each of the next positions.

    kvpress knows of no rates by layer type, which transformers 5 has for Gemma 3.
    """
    model, ids, found = tiny_gemma3(), random_ids(96), {}
    press = BlockJointPress(ExpectedAttentionPress(0.5, n_future_positions=32), recent=8)
    cache, score = transformers.DynamicCache(), press.scores_of

    def spying(module, cache, kwargs, output):
        layer = cache.layers[module.layer_idx]
        scores = score(module, cache, kwargs, output)
        found[module.layer_idx] = (module, kwargs["hidden_states"], layer.keys[0], layer.values[0], scores)
        return scores

    press.scores_of = spying
    with press(model):  # as a user of kvpress does
        prefill(model, ids, cache)
    assert sorted(found) == [1, 3]
    assert [layer.keys.shape[2] for layer in cache.layers] == [96, 48, 96, 48]
    rates = model.config.rope_parameters["full_attention"]["rope_theta"] ** -(np.arange(4) / 4)
    angles = np.arange(96, 128)[:, None] * np.concatenate([rates, rates])
    turn = np.zeros((8, 8))
    for cosine, sine in zip(np.cos(angles), np.sin(angles), strict=True):
        half = np.diag(sine[:4])
        turn += (np.diag(cosine) + np.block([[np.zeros((4, 4)), -half], [half, np.zeros((4, 4))]])) / 32
    for module, hidden, keys, values, scores in found.values():
        with torch.no_grad():
            queries = module.q_norm(module.q_proj(hidden[:, 4:]).view(92, 4, 8)).numpy()
        key, expected = keys[0, 4:].numpy().astype(float), np.zeros(92)
        for head in range(4):
            mean, spread = queries[:, head].mean(0) @ turn.T, np.cov(queries[:, head].T, bias=True)
            spread = turn @ spread @ turn.T
            logits = key @ mean / 8**0.5 + np.einsum("ni,ij,nj->n", key, spread, key) / 16
            weights = np.exp(logits - logits.max())
            expected += weights / weights.sum() / 4
        expected *= np.linalg.norm(values[0, 4:].numpy(), axis=-1)
        np.testing.assert_allclose(scores[0, 4:], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["expected-attention", "block-joint:recent=8:expected-attention", "cap", "triattention:recent=8"]
)
def test_presses_that_rotate_take_a_model_with_rates_by_layer_type(name):
    model, ids = tiny_gemma3(), random_ids(96)
    calibrate(model, ids)
    kept = capture(model, {name: make(name, 0.5, 96)}, ids).masks[name].array.sum(axis=-1)
    assert kept[:, 0].tolist() == [96, 48, 96, 48]


@pytest.mark.parametrize(
    ("name", "moved"), [("block-joint", 0.0), ("block-swap:copies=0.02", 0.02), ("blend", 0.125)]
)
def test_a_shared_table_frees_what_the_budget_saves(name, moved):
    """On SmolLM2: with no copy, or with as few as the press is allowed."""
    model, _ = smollm2()
    ids = prose_ids(512)
    mask = capture(model, {"it": make(f"{name}:snapkv", 0.5, 512)}, ids).masks["it"]
    ledger = audit(mask, BlockLayout(16))
    assert ledger.packing.physical_reclaim == 0.5
    assert ledger.packing.moved_pairs <= moved * mask.array.size
    assert (ledger.physical_reclaim == 0.5) == (moved == 0)


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (lambda: BlockJointPress(AdaKVPress(SnapKVPress(0.5))), "SnapKVPress"),
        (lambda: BlockJointPress(SnapKVPress(0.5), block_size=0), "block_size"),
        (lambda: BlockJointPress(SnapKVPress(0.5), block_tables="each"), "per_head"),
        (lambda: BlockJointPress(SnapKVPress(0.5), heads="most"), "mean, max, rank"),
        (lambda: make("block-joint", 0.5, 100), "block-joint:snapkv"),
        (lambda: make("block-joint:h2o", 0.5, 100), "takes no h2o"),
        (lambda: make("block-joint:bet=1:snapkv", 0.5, 100), "block_size"),
    ],
)
def test_bad_input_gets_one_clear_line(refused, says):
    with pytest.raises(InputError, match=says) as error:
        refused()
    assert "\n" not in str(error.value)


def test_a_budget_below_what_stays_is_refused_by_name():
    with pytest.raises(InputError, match=r"it: block-joint keeps 4 sinks and 64 recent tokens"):
        capture(tiny_llama(), {"it": BlockJointPress(StreamingLLMPress(0.5))}, random_ids(100))


def test_a_batch_is_refused():
    with pytest.raises(InputError, match="batch of 2"), BlockJointPress(KeyDiffPress(0.5))(tiny_llama()):
        prefill(tiny_llama(), random_ids(200).repeat(2, 1))


def test_while_decoding_the_same_whole_blocks_leave_everywhere():
    """By hand: at step 16 the policy on knorm's scores of all layers' 76 rows, in blocks of 4."""
    model, ids, cache = tiny_llama(), random_ids(60), transformers.DynamicCache()
    following = random_ids(20, seed=3)
    press = make_decoding("decoding:compression_interval=16:block-joint:block_size=4:recent=8:knorm", 48)
    series = record_decoding(model, press, ids, 20, continuation=following)
    with torch.no_grad():
        model(torch.cat([ids, following[:, :16]], dim=1), past_key_values=cache)
    scores = np.stack([-layer.keys[0].norm(dim=-1).numpy() for layer in cache.layers])
    raised = scores - np.minimum(scores.min(axis=-1, keepdims=True), 0)
    expected = policies.get("block-joint", recent=8).select(raised, 48, BlockLayout(4))
    assert np.array_equal(series.mask(16).array, expected.array)
    assert series.mask(15).array.all()
    assert [int(series.mask(step).array.sum()) // 6 for step in (15, 16, 20)] == [75, 48, 52]
    assert audit(series.mask(16), BlockLayout(4)).free_blocks == 7


@pytest.mark.parametrize("tables", ["shared", "per_layer"])
@pytest.mark.parametrize(
    ("policy", "given"),
    [("block-joint", {"top": 3}), ("block-swap", {"copies": 0.1}), ("blend", {"beta": 0.5})],
)
def test_while_decoding_blocks_are_those_that_a_runtime_would_hold(policy, given, tables):
    """By hand, over two evictions: a row of memory for each head, moved in as vLLM's plugin plans it."""
    model, block = tiny_llama(), 4
    ((option, value),) = given.items()
    name = f"{policy}:{option}={value}:block_size={block}:block_tables={tables}:recent=3:knorm"
    press, scored = make_decoding(f"decoding:compression_interval=9:{name}", 32), []
    score = press.press.scores_of

    def spying(module, *rest):
        scores = score(module, *rest)
        scored.append(scores.numpy())
        return scores

    press.press.scores_of = spying
    series = record_decoding(model, press, random_ids(41), 20, continuation=random_ids(20, seed=3))
    chosen = policies.get(policy, recent=3, **given)
    tokens = np.broadcast_to(np.arange(41), (3, 2, 41))  # which one lies in each slot
    for event, step in enumerate((9, 18)):
        fresh = np.broadcast_to(np.arange(41 + 9 * event, 41 + step), (3, 2, 9))
        tokens = np.concatenate([tokens, fresh], axis=-1)
        in_order = np.stack(scored[3 * event : 3 * event + 3])
        by_slot = np.take_along_axis(in_order, tokens.argsort(-1).argsort(-1), axis=-1)
        filled = tokens.shape[-1]
        last = (filled - 1) % block + 1
        keep = chosen.select(by_slot, last + (32 - last) // block * block, BlockLayout(block, tables)).array
        parts = [slice(None)] if tables == "shared" else [slice(layer, layer + 1) for layer in range(3)]
        tokens = np.concatenate(
            [plan_row(keep[part], block, "pack").carry(tokens[part], -1) for part in parts]
        )
        for layer, of_head in np.ndindex(3, 2):
            alive = np.flatnonzero(series.mask(step).array[layer, of_head])
            assert sorted(tokens[layer, of_head]) == alive.tolist()
    moved = tokens[..., 1:] < tokens[..., :-1]
    assert moved.any() == (policy != "block-joint")


def test_decoding_again_starts_anew():
    press = make_decoding("decoding:compression_interval=8:token-joint:recent=16:block_size=4:rkv", 48)
    for _ in range(2):
        series = record_decoding(tiny_llama(), press, random_ids(60), 10)
        assert [int(series.mask(step).array.sum()) // 6 for step in (7, 8, 10)] == [67, 48, 50]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("decoding:block-swap:recent=0:knorm", "while decoding the last block stays"),
        ("decoding:block-joint:block_size=5:knorm", "pass a multiple"),
        ("decoding:compression_interval=0:block-joint:knorm", "compression_interval"),
        ("decoding:block-joint", "block-joint:snapkv"),
    ],
)
def test_what_can_not_decode_is_refused(name, says):
    with pytest.raises(InputError, match=says):
        make_decoding(name, 48)
