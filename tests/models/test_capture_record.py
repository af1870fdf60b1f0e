"""What is recorded beside a press is what the press chose."""

import pytest
from small_models import (
    hooks,
    kvpress,
    prose_ids,
    random_ids,
    smollm2,
    tiny_gemma3,
    tiny_llama,
    torch,
    transformers,
)

from kvreclaim import InputError, audit
from kvreclaim.capture.record import record

TOKENS = 96


def own_choice(press):
    """Note the press's own top-k, layer by layer, from within."""
    chosen, score = {}, press.score

    def noting(module, hidden_states, keys, *rest):
        scores = score(module, hidden_states, keys, *rest)
        kept = scores.topk(int(keys.shape[2] * (1 - press.compression_ratio)), dim=-1).indices
        chosen[module.layer_idx] = torch.zeros(scores.shape[1:], dtype=torch.bool).scatter_(1, kept[0], True)
        return scores

    press.score = noting
    return chosen


def run(model, ids, cache=None):
    cache = transformers.DynamicCache() if cache is None else cache
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    return cache


def mask_of(model, press, ids):
    with record(model) as recorder, press(model):
        run(model, ids)
    return recorder.keep_mask.array


def test_snapkv_on_smollm2_bit_for_bit():
    model, _ = smollm2()
    ids, press = prose_ids(512), kvpress.SnapKVPress(0.5)
    chosen = own_choice(press)
    with record(model, "snapkv", 0.5) as recorder, press(model):
        run(model, ids)
    mask = recorder.keep_mask
    assert torch.equal(
        torch.from_numpy(mask.array.copy()), torch.stack([chosen[layer] for layer in range(30)])
    )
    assert (mask.name, mask.metadata.model) == ("snapkv", "smollm2-135m")
    assert (mask.metadata.ratio, mask.metadata.prompt_length) == (0.5, 512)
    assert recorder.retained == 0.5
    assert recorder.ambiguous_rows == 0
    assert audit(mask).physical_reclaim == 0.0


@pytest.mark.parametrize(
    "press", [kvpress.SnapKVPress(0.3, 16), kvpress.KnormPress(0.75), kvpress.StreamingLLMPress(0.6)]
)
def test_any_scorer_on_a_tiny_model(press):
    chosen = own_choice(press)
    mask = mask_of(tiny_llama(), press, random_ids(TOKENS))
    assert torch.equal(torch.from_numpy(mask.copy()), torch.stack([chosen[layer] for layer in range(3)]))


def test_whichever_block_is_the_outer_one():
    model, ids = tiny_llama(), random_ids(TOKENS)
    with kvpress.SnapKVPress(0.5, 16)(model), record(model) as recorder:
        run(model, ids)
    assert (recorder.keep_mask.array == mask_of(model, kvpress.SnapKVPress(0.5, 16), ids)).all()


@pytest.mark.parametrize("press", [kvpress.KVzipPress(0.5), kvpress.KVComposePress(compression_ratio=0.5)])
def test_presses_that_compress_when_their_block_ends(press):
    model, _ = smollm2()
    with press(model), record(model) as recorder:
        run(model, prose_ids(128))
    assert recorder.keep_mask.array.shape == (30, 3, 128)
    assert recorder.retained == pytest.approx(0.5, abs=0.01)


def test_rows_that_are_only_marked_dead():
    mask = mask_of(tiny_llama(), kvpress.AdaKVPress(kvpress.KnormPress(0.5)), random_ids(TOKENS))
    per_head = mask.sum(axis=-1)
    assert (per_head.sum(axis=-1) == 2 * TOKENS // 2).all()
    assert len(set(per_head.ravel().tolist())) > 1


def test_marks_of_an_earlier_press_are_forgotten():
    model, ids = tiny_llama(), random_ids(TOKENS)
    mask_of(model, kvpress.AdaKVPress(kvpress.KnormPress(0.5)), ids)
    model.set_attn_implementation("eager")  # where kvpress itself does not forget them
    try:
        with record(model) as recorder:
            run(model, ids)
    finally:
        model.set_attn_implementation("sdpa")
    assert recorder.keep_mask.array.all()


def test_budgets_of_layers():
    mask = mask_of(tiny_llama(), kvpress.PyramidKVPress(0.5, window_size=4, beta=4), random_ids(TOKENS))
    kept = mask.sum(axis=-1)
    assert kept[0, 0] > kept[1, 0] > kept[2, 0]


@pytest.mark.parametrize(
    "press, said",
    [
        (kvpress.MergingPress(kvpress.KnormPress(0.5)), "layer 0: it rewrites values, as a merge"),
        (kvpress.KeyRerotationPress(kvpress.KnormPress(0.5)), "layer 0: it rewrites keys, re-rotated"),
        (kvpress.ThinKPress(0.5), "layer 0: it rewrites keys, re-rotated or with channels cleared"),
    ],
)
def test_rewritten_rows_are_refused(press, said):
    with pytest.raises(InputError, match=said):
        mask_of(tiny_llama(), press, random_ids(TOKENS))


def test_generating_on_does_no_harm():
    model, ids = tiny_llama(), random_ids(TOKENS)
    with record(model) as recorder, kvpress.SnapKVPress(0.5, 16)(model):
        cache = run(model, ids)
        before = recorder.keep_mask.array.copy()
        for token in range(3):
            run(model, torch.tensor([[token]]), cache)
    assert (recorder.keep_mask.array == before).all()


def test_the_last_prompt_counts():
    model = tiny_llama()
    with record(model) as recorder, kvpress.KnormPress(0.5)(model):
        run(model, random_ids(TOKENS))
        run(model, random_ids(40))
    assert recorder.keep_mask.tokens == 40


def test_a_window_is_the_layouts_matter():
    """The model's own cache drops what slides out of a window; a press did not."""
    model = tiny_gemma3(16)
    with record(model) as recorder:
        run(model, random_ids(TOKENS), transformers.DynamicCache(config=model.config))
    assert recorder.keep_mask.array.all()


def test_what_cannot_be_recorded():
    model, ids = tiny_llama(), random_ids(TOKENS)
    with record(model) as recorder, pytest.raises(InputError, match="nothing recorded"):
        _ = recorder.keep_mask
    with record(model), pytest.raises(InputError, match="a batch of 2 prompts"):
        run(model, ids.expand(2, -1))
    with record(model), torch.no_grad(), pytest.raises(InputError, match="without a cache"):
        model(input_ids=ids, use_cache=False)
    cache = run(model, ids)
    with record(model), pytest.raises(InputError, match="holds tokens already"):
        run(model, ids, cache)


def test_no_hook_stays():
    model = tiny_llama()
    before = hooks(model)
    with record(model):
        assert hooks(model) == [count + 1 for count in before]
    assert hooks(model) == before
