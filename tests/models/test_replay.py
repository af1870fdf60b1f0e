"""The replay against the model itself: masks over whole sequences, gathered rows, compressed caches."""

import copy

import numpy as np
import pytest
from small_models import (
    prefill,
    prose_ids,
    random_ids,
    smollm2,
    tiny_gemma2,
    tiny_gemma3,
    tiny_llama,
    torch,
    transformers,
)

from kvreclaim import InputError, KeepMask
from kvreclaim.capture.prefill import capture
from kvreclaim.capture.presses import make
from kvreclaim.capture.quality.replay import ATTENTION, agreed, generate, replay_logits, replaying

TOKENS, NEXT = 40, 9

MODELS = {
    "grouped queries": tiny_llama,
    "one KV head": lambda: tiny_llama(4, 1),
    "a KV head for each query head": lambda: tiny_llama(4, 4),
    "eager": lambda: tiny_llama(4, 2, "eager"),
    "sliding layers": tiny_gemma3,
    "capped logits": tiny_gemma2,
}


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def model(request):
    return request.param()


def split():
    ids = random_ids(TOKENS + NEXT)
    return ids[:, :TOKENS], ids[0, TOKENS:]


def random_mask(model, share=0.5, seed=1):
    config = model.config
    shape = (config.num_hidden_layers, config.num_key_value_heads, TOKENS)
    return KeepMask(np.random.default_rng(seed).random(shape) < share)


def plain(model, cache, next_ids, **positions):
    with torch.no_grad():
        return model(input_ids=next_ids[None], past_key_values=copy.deepcopy(cache), **positions).logits[0]


def close(one, other, within=1e-5):
    torch.testing.assert_close(one, other, rtol=0, atol=within)


def test_keeping_everything_is_the_plain_forward(model):
    prompt, next_ids = split()
    cache = prefill(model, prompt)
    everything = KeepMask(np.ones((len(cache.layers), model.config.num_key_value_heads, TOKENS), bool))
    expected = plain(model, cache, next_ids)
    close(replay_logits(model, cache, everything, next_ids), expected)
    close(replay_logits(model, cache, None, next_ids), expected)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_mask_of_each_head_is_an_attention_mask_over_the_whole_sequence(kv_heads):
    model = tiny_llama(4, kv_heads, "eager")
    prompt, next_ids = split()
    one_layer = random_mask(model).array[:1]  # heads keep different numbers of pairs
    mask = KeepMask(np.repeat(one_layer, 3, axis=0))
    total = TOKENS + NEXT
    allowed = torch.ones(total, total, dtype=torch.bool).tril().repeat(1, 4, 1, 1)
    allowed[:, :, TOKENS:, :TOKENS] &= torch.tensor(one_layer[0]).repeat_interleave(4 // kv_heads, 0)[:, None]
    bias = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.no_grad():
        whole = model(input_ids=torch.cat([prompt, next_ids[None]], 1), attention_mask=bias).logits[
            0, TOKENS:
        ]
    replayed = replay_logits(model, prefill(model, prompt), mask, next_ids)
    close(replayed, whole)
    assert (replayed - replay_logits(model, prefill(model, prompt), None, next_ids)).abs().max() > 0.1


@pytest.mark.parametrize("model", [tiny_llama(), tiny_llama(4, 2, "eager")], ids=["sdpa", "eager"])
def test_a_mask_of_each_layer_and_head_is_a_cache_of_the_kept_rows(model):
    prompt, next_ids = split()
    cache, kept = prefill(model, prompt), 17
    order = np.random.default_rng(2).random((3, 2, TOKENS)).argsort(-1)[..., :kept]
    rows = np.sort(order, axis=-1)
    array = np.zeros((3, 2, TOKENS), bool)
    np.put_along_axis(array, rows, True, axis=-1)
    small = copy.deepcopy(cache)
    for layer, places in zip(small.layers, torch.tensor(rows), strict=True):
        index = places[None, :, :, None].expand(-1, -1, -1, layer.keys.shape[-1])
        layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
    positions = torch.arange(TOKENS, TOKENS + NEXT)[None]
    expected = plain(model, small, next_ids, position_ids=positions)
    close(replay_logits(model, cache, KeepMask(array), next_ids), expected)


def test_a_sliding_layer_may_be_cached_whole_or_to_its_window():
    model = tiny_gemma3()
    prompt, next_ids = split()
    whole = prefill(model, prompt)
    cut = prefill(model, prompt, transformers.DynamicCache(config=model.config))
    assert cut.layers[0].keys.shape[2] < whole.layers[0].keys.shape[2]
    mask = random_mask(model)
    close(replay_logits(model, cut, mask, next_ids), replay_logits(model, whole, mask, next_ids))
    outside = mask.array.copy()
    outside[[0, 2], :, : TOKENS - 16] ^= True  # what a window has passed is nothing to the new tokens
    close(replay_logits(model, cut, KeepMask(outside), next_ids), replay_logits(model, cut, mask, next_ids))


def test_a_window_moves_past_the_prompt_step_by_step():
    model = tiny_gemma3()
    ids = random_ids(TOKENS + 30)
    prompt, next_ids = ids[:, :TOKENS], ids[0, TOKENS:]
    cache = prefill(model, prompt, transformers.DynamicCache(config=model.config))
    mask = random_mask(model)
    with replaying(model, cache, mask) as step:
        steps = torch.cat([step(next_ids[i : i + 1]) for i in range(30)])
    close(steps, replay_logits(model, cache, mask, next_ids))


def test_cache_and_model_are_left_as_they_were(model):
    prompt, next_ids = split()
    cache = prefill(model, prompt)
    before = [(layer.keys, layer.keys.clone(), layer.values, layer.values.clone()) for layer in cache.layers]
    attention = model.config._attn_implementation
    first = replay_logits(model, cache, random_mask(model), next_ids)
    with pytest.raises(KeyboardInterrupt), replaying(model, cache, None) as step:
        assert model.config._attn_implementation == ATTENTION
        step(next_ids)
        raise KeyboardInterrupt
    assert model.config._attn_implementation == attention
    for layer, (keys, keys_then, values, values_then) in zip(cache.layers, before, strict=True):
        assert layer.keys is keys and layer.values is values
        assert torch.equal(keys, keys_then) and torch.equal(values, values_then)
    assert torch.equal(replay_logits(model, cache, random_mask(model), next_ids), first)


def test_rows_that_a_press_marked_dead_before_do_not_matter():
    model = tiny_llama()
    prompt, next_ids = split()
    cache = prefill(model, prompt)
    expected = replay_logits(model, cache, random_mask(model), next_ids)
    attention = model.model.layers[0].self_attn
    attention.masked_key_indices = (torch.tensor([0]), torch.tensor([0]), torch.tensor([3]))
    try:
        assert torch.equal(replay_logits(model, cache, random_mask(model), next_ids), expected)
    finally:
        del attention.masked_key_indices


def test_what_kvpress_wraps_on_its_import_is_taken_back(monkeypatch):
    model = tiny_llama()
    prompt, next_ids = split()
    cache = prefill(model, prompt)
    expected = replay_logits(model, cache, random_mask(model), next_ids)
    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    monkeypatch.setitem(functions, ATTENTION, lambda *_, **__: pytest.fail("the wrapped function ran"))
    assert torch.equal(replay_logits(model, cache, random_mask(model), next_ids), expected)


def test_last_gives_the_last_logits():
    model = tiny_llama()
    prompt, next_ids = split()
    cache = prefill(model, prompt)
    with replaying(model, cache, None) as step:
        last = step(next_ids, last=2)
    close(last, replay_logits(model, cache, None, next_ids)[-2:])


def test_greedy_text_is_that_of_the_model_itself():
    model = tiny_llama()
    prompt, next_ids = split()
    cache = prefill(model, prompt)
    text, ids = [], torch.cat([prompt, next_ids[None]], 1)
    for _ in range(12):
        with torch.no_grad():
            text.append(model(input_ids=ids).logits[0, -1].argmax().item())
        ids = torch.cat([ids, torch.tensor([[text[-1]]])], 1)
    assert generate(model, cache, None, next_ids, 12) == text
    stop = text[5]
    assert generate(model, cache, None, next_ids, 12, [stop]) == text[: text.index(stop)]
    assert generate(model, cache, None, next_ids, 0) == []


def test_what_does_not_fit_is_refused():
    model = tiny_llama()
    prompt, next_ids = split()
    cache = prefill(model, prompt)
    with pytest.raises(InputError, match=r"shape \(1, 1, 40\), the cache \(3, 2, 40\)"):
        replay_logits(model, cache, KeepMask(np.ones(40, bool)), next_ids)
    static = transformers.StaticCache(config=model.config, max_cache_len=64)
    with pytest.raises(InputError, match="DynamicCache of a prefilled prompt, got StaticCache"):
        replay_logits(model, static, None, next_ids)
    with pytest.raises(InputError, match="DynamicCache"):
        replay_logits(model, transformers.DynamicCache(), None, next_ids)
    with pytest.raises(InputError, match="one sequence, got 2"):
        replay_logits(model, prefill(model, prompt.repeat(2, 1)), None, next_ids)


def test_a_model_with_attention_of_its_own_is_refused(monkeypatch):
    model = tiny_llama()
    prompt, next_ids = split()
    cache = prefill(model, prompt)
    attention = model.model.layers[1].self_attn
    monkeypatch.setattr(attention, "forward", lambda hidden_states, **_: (hidden_states, None))
    with pytest.raises(InputError, match="AttentionInterface"):
        replay_logits(model, cache, None, next_ids)


@pytest.mark.parametrize("name", ["snapkv", "kvpress-streaming-llm", "adakv:snapkv"])
def test_the_replay_equals_the_really_compressed_cache(name):
    model, _ = smollm2()
    tokens, following = 512, 32
    ids = prose_ids(tokens + following)
    prompt, next_ids = ids[:, :tokens], ids[0, tokens:]
    captured = capture(model, {name: make(name, 0.5, tokens)}, prompt)
    compressed = transformers.DynamicCache()
    with torch.no_grad(), make(name, 0.5, tokens)(model):
        model.model(input_ids=prompt, past_key_values=compressed)
        positions = torch.arange(tokens, tokens + following)[None]
        really = model(input_ids=next_ids[None], past_key_values=compressed, position_ids=positions).logits[0]
    close(replay_logits(model, captured.cache, captured.masks[name], next_ids), really, within=1e-4)
    assert (replay_logits(model, captured.cache, None, next_ids) - really).abs().max() > 1


@pytest.mark.parametrize("right", range(8))
def test_what_agrees_with_a_draft_is_what_is_decoded(model, right):
    prompt, next_ids = split()
    cache, mask = prefill(model, prompt), random_mask(model)
    decoded = generate(model, cache, mask, next_ids, 8)
    draft = torch.tensor(decoded[:7])
    draft[right:] = (draft[right:] + 1) % 97  # as far as it is right, and wrong from there on
    assert agreed(model, cache, mask, next_ids, draft) == decoded[: right + 1]
