"""The project's policies on a real model's attention, against eager attention and brute force."""

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
from kvreclaim.capture.inside.queries import latest_queries, observed_queries
from kvreclaim.capture.prefill import capture
from kvreclaim.capture.presses import make
from kvreclaim.capture.presses.policy_press import PolicyPress, ReceivedAttention, WindowAttention
from kvreclaim.capture.record import record
from kvreclaim.layout import BlockLayout
from kvreclaim.scores.attention import QUERY_BLOCK, HeavyHitters, attention_weights, received_attention

TOKENS = 2 * QUERY_BLOCK - 40


def eager_attention(model, ids):
    """The attention weights [heads, tokens, tokens] of each layer, from the model itself."""
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return [weights[0] for weights in model(ids, output_attentions=True).attentions]
    finally:
        model.set_attn_implementation("sdpa")


def grouped(weights, kv_heads=2):
    return weights.unflatten(0, (kv_heads, -1)).mean(1)


def scores_of(model, scorer, ids):
    """Scores [layers, kv_heads, tokens] as a press makes them."""
    seen = []

    class Noting(PolicyPress):
        def cut(self, _, scores, __):
            seen.extend(scores[layer] for layer in sorted(scores))

    with Noting(0.5, policies.LowestImportance(), scorer)(model):
        prefill(model, ids)
    return torch.stack(seen)


def test_received_attention_is_that_of_eager_attention():
    model, ids = tiny_llama(), random_ids(TOKENS)
    expected = torch.stack([grouped(weights).sum(1) for weights in eager_attention(model, ids)])
    torch.testing.assert_close(scores_of(model, ReceivedAttention(), ids), expected, rtol=1e-4, atol=1e-5)


def test_queries_of_a_family_with_norms_and_two_rotations():
    model, ids = tiny_gemma3(16), random_ids(TOKENS)
    expected = [grouped(weights, 1).sum(1) for weights in eager_attention(model, ids)][1::2]
    found = scores_of(model, ReceivedAttention(), ids)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_window_attention_is_snapkvs_score():
    model, ids, seen = tiny_llama(), random_ids(TOKENS), []
    press = kvpress.SnapKVPress(0.5, window_size=16)
    score = press.score
    press.score = lambda *given: seen.append(score(*given)[0]) or score(*given)
    with press(model):
        prefill(model, ids)
    found = scores_of(model, WindowAttention(16), ids)
    torch.testing.assert_close(found[..., :-16], torch.stack(seen)[..., :-16], rtol=1e-4, atol=1e-6)
    assert (found[..., -16:] > found[..., :-16].amax(-1, keepdim=True)).all()


def test_one_shot_h2o_on_smollm2():
    model, _ = smollm2()
    ids = prose_ids(256)
    mask = capture(model, {"h2o": make("h2o", 0.5, 256)}, ids).masks["h2o"]
    scores = torch.stack([grouped(weights, 3).sum(1) for weights in eager_attention(model, ids)])
    expected = policies.H2O().select(scores.numpy(), 128)
    assert (mask.array == expected.array).mean() > 0.999  # two ways to round the same attention
    assert mask.array[:, :, -64:].all()


def test_streaming_llm_is_kvpress_streaming_llm():
    for ratio in (0.1, 0.5, 0.77):
        both = {name: make(name, ratio, 100) for name in ("streaming-llm", "kvpress-streaming-llm")}
        found = capture(tiny_llama(), both, random_ids(100)).masks
        assert (found["streaming-llm"].array == found["kvpress-streaming-llm"].array).all()


@pytest.mark.parametrize("name", ["block-wise", "reclaimability-aware:beta=0"])
@pytest.mark.parametrize("tables", ["shared", "per_layer", "per_head"])
def test_whole_blocks_of_the_tables_asked_for(name, tables):
    text = f"{name}:block_size=8:window_size=8:block_tables={tables}"
    mask = capture(tiny_llama(), {"it": make(text, 0.5, 128)}, random_ids(128)).masks["it"]
    assert audit(mask, BlockLayout(8, tables)).physical_reclaim == 0.5
    assert mask.array[:, :, -8:].all()


def test_a_window_as_long_as_the_prompt():
    with pytest.raises(InputError, match="it: 32 tokens and a window_size of 32: pass a smaller window_size"):
        capture(tiny_llama(), {"it": make("block-wise:window_size=32", 0.5, 32)}, random_ids(32))


def brute_h2o(weights_of, tokens, budget, recent, evicts_after=lambda _: True):
    """The living after each token is read: attention among them adds up, and the least is evicted."""
    living, received, after = [], {}, []
    for token in range(tokens):
        living.append(token)
        received[token] = 0.0
        for other, weight in zip(living, weights_of(token, living), strict=True):
            received[other] += weight
        while len(living) > budget and evicts_after(token + 1):
            living.remove(min(living[: len(living) - recent], key=lambda other: received[other]))
        after.append(list(living))
    return after


@pytest.mark.parametrize("stride", [1, 7])
def test_accumulated_h2o_by_brute_force(stride):
    model, ids, queries = tiny_llama(), random_ids(60), {}

    def note(module, *_):
        queries[module.layer_idx] = latest_queries(module)

    with observed_queries(model):
        hooks = [layer.self_attn.register_forward_hook(note) for layer in model.model.layers]
        cache = prefill(model, ids)
        for hook in hooks:
            hook.remove()
    name = f"h2o-accumulated:stride={stride}:recent_share=0.25"
    mask = capture(model, {"it": make(name, 0.75, 60)}, ids).masks["it"].array
    for layer, head in np.ndindex(3, 2):
        keys, own = cache.layers[layer].keys[0, head], queries[layer][2 * head : 2 * head + 2]

        def weights_of(token, living, keys=keys, own=own):
            return (own[:, token] @ keys[living].T * 8**-0.5).softmax(-1).mean(0).tolist()

        after = brute_h2o(weights_of, 60, 15, 3, lambda read: read % stride == 0 or read == 60)
        assert np.flatnonzero(mask[layer, head]).tolist() == after[-1]


def test_heavy_hitters_evict_nothing_under_the_budget():
    hitters = HeavyHitters(2, budget=8, recent=4, device=torch.device("cpu"))
    hitters.observe(torch.randn(4, 5, 8), torch.randn(2, 5, 8), 1.0, first=0)
    assert hitters.evict().tolist() == [[0, 1, 2, 3, 4]] * 2
    assert hitters.received.sum(-1).tolist() == pytest.approx([5.0, 5.0])


def test_attention_weights_are_causal_and_sum_to_one():
    weights = attention_weights(torch.randn(4, 3, 8), torch.randn(2, 10, 8), 8**-0.5)
    assert weights.shape == (2, 2, 3, 10)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 3))
    assert weights[:, :, 0, 8:].abs().max() == 0
    assert weights[:, :, 1, 9:].abs().max() == 0


def test_no_square_of_tokens_is_held():
    """Received attention holds a block of queries at a time: no tensor in it has tokens x tokens numbers."""
    tokens, largest = 4 * QUERY_BLOCK, 0

    class Sizes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, _, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            largest = max(largest, result.numel() if isinstance(result, torch.Tensor) else 0)
            return result

    with Sizes():
        received_attention(torch.randn(1, tokens, 8), torch.randn(1, tokens, 8), 1.0)
    assert largest == QUERY_BLOCK * tokens


@pytest.mark.parametrize("name", ["h2o", "block-wise:window_size=8", "streaming-llm", "h2o-accumulated"])
def test_beside_a_model_of_its_own_the_cache_really_shrinks(name):
    model, ids, cache = tiny_llama(), random_ids(100), transformers.DynamicCache()
    with record(model) as recorder, make(name, 0.5, 100)(model):
        prefill(model, ids, cache)
    assert [layer.keys.shape[2] for layer in cache.layers] == [50] * 3
    assert (
        recorder.keep_mask.array == capture(model, {"it": make(name, 0.5, 100)}, ids).masks["it"].array
    ).all()


def test_eager_attention_shows_no_queries():
    with pytest.raises(InputError, match="set it to sdpa"), make("h2o", 0.5, 9)(tiny_llama(4, 2, "eager")):
        pass


def test_queries_are_those_of_the_layer_that_ran():
    model = tiny_llama()
    with observed_queries(model):
        prefill(model, random_ids(9))
        assert latest_queries(model.model.layers[-1].self_attn).shape == (4, 9, 8)
        with pytest.raises(RuntimeError):
            latest_queries(model.model.layers[0].self_attn)


def test_a_policy_press_needs_a_policy():
    with pytest.raises(InputError, match="needs a policy"):
        PolicyPress(0.5)
