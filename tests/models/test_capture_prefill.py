"""Many presses in one prefill: the same masks as each beside a model of its own, and nothing is evicted."""

import numpy as np
import pytest
from small_models import (
    hooks,
    kvpress,
    prefill,
    prose_ids,
    random_ids,
    smollm2,
    tiny_gemma3,
    tiny_llama,
    torch,
)

from kvreclaim import InputError
from kvreclaim.capture.prefill import capture
from kvreclaim.capture.presses import make, names
from kvreclaim.capture.record import record

TOKENS = 96
SETTINGS = {  # what the tiny models and the short prompt need, and what a wrapper wraps
    "adakv:PRESS": "adakv:knorm",
    "block-wise": "block-wise:window_size=8",
    "block:PRESS": "block:block_size=16:keydiff",
    "chunk:PRESS": "chunk:chunk_length=32:knorm",
    "chunkkv:PRESS": "chunkkv:chunk_length=8:knorm",
    "compactor": "compactor:sketch_dimension=4",
    "composed:PRESS": "composed:snapkv:window_size=8:knorm",
    "critical-adakv:PRESS": "critical-adakv:knorm",
    "criticalkv:PRESS": "criticalkv:snapkv:window_size=8",
    "dms:PRESS": "dms:threshold=-6:sliding_window_size=16:knorm",
    "entropy-gated-chunkkv:PRESS": "entropy-gated-chunkkv:snapkv:window_size=8",
    "lagkv": "lagkv:lag_size=16",
    "leverage-score": "leverage-score:sketch_dimension=4",
    "lowest-importance": "lowest-importance:window_size=8",
    "per-layer:PRESS": "per-layer:knorm",
    "pyramidkv": "pyramidkv:window_size=4:beta=4",
    "reclaimability-aware": "reclaimability-aware:window_size=8",
    "simlayerkv": "simlayerkv:lazy_threshold=0.5",
    "snapkv": "snapkv:window_size=8",
}
NEEDS_A_TOKENIZER = {"kvzip", "kvgrad"}
NEEDS_FILES = {"expected-attention-stats"}
NAMES = [SETTINGS.get(name, name) for name in names() if name not in NEEDS_A_TOKENIZER | NEEDS_FILES]
DRAWN = {"compactor:sketch_dimension=4", "leverage-score:sketch_dimension=4", "kvpress-random"}  # at random
WEIGHED = "observed-attention"


def presses(ratio=0.5, chosen=NAMES):
    return {name: make(name, ratio, TOKENS) for name in chosen}


@pytest.fixture(scope="module")
def captured():
    return capture(tiny_llama(), presses(), random_ids(TOKENS))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DRAWN])
def test_as_beside_a_model_of_its_own(captured, name):
    """The press really compresses; what it leaves is what was captured."""
    model, press = tiny_llama(), make(name, 0.5, TOKENS)
    if name == WEIGHED:
        model.set_attn_implementation("eager")
    try:
        with record(model) as recorder, press(model):
            prefill(model, random_ids(TOKENS))
    finally:
        model.set_attn_implementation("sdpa")
    assert (captured.masks[name].array == recorder.keep_mask.array).all()


@pytest.mark.parametrize("name", NAMES)
def test_budgets(captured, name):
    mask = captured.masks[name]
    kept = mask.array.sum(axis=-1)
    assert mask.metadata.ratio == (None if name.startswith(("dms", "simlayerkv")) else 0.5)
    assert (mask.name, mask.metadata.policy, mask.metadata.prompt_length) == (name, name, TOKENS)
    if name.startswith(("dms", "simlayerkv")):
        assert 0 < captured.retained[name] < 1
    elif name.startswith(("per-layer", "pyramidkv", "kvcompose")):  # one budget for all layers together
        assert captured.retained[name] == pytest.approx(0.5, abs=0.02)
    elif name.startswith(("adakv", "critical-adakv")):  # one budget for the heads of a layer
        assert (kept.sum(axis=-1) == 2 * TOKENS // 2).all()
    elif name.startswith("composed"):
        assert captured.retained[name] == pytest.approx(0.5, abs=0.02)
    else:
        assert (kept == TOKENS // 2).all()


def test_the_cache_is_the_models_own(captured):
    plain = prefill(tiny_llama(), random_ids(TOKENS))
    for one, other in zip(captured.cache.layers, plain.layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)


def test_time_is_taken(captured):
    assert set(captured.seconds) == set(NAMES)
    assert all(took > 0 for took in captured.seconds.values())
    assert captured.prefill_seconds > 0


def test_the_same_masks_again_and_in_any_company(captured):
    alone = ["kvpress-random", "random", "compactor:sketch_dimension=4", "h2o"]
    again = capture(tiny_llama(), presses(chosen=alone), random_ids(TOKENS))
    for name in alone:
        assert (again.masks[name].array == captured.masks[name].array).all()
    other = capture(tiny_llama(), presses(chosen=alone), random_ids(TOKENS), seed=1)
    assert (other.masks["kvpress-random"].array != again.masks["kvpress-random"].array).any()


def test_random_masks_differ_between_layers(captured):
    first, second, _ = captured.masks["kvpress-random"].array
    assert (first != second).any()


def test_no_random_number_of_the_user_is_spent():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    capture(tiny_llama(), presses(chosen=["kvpress-random"]), random_ids(TOKENS))
    assert torch.equal(torch.rand(2), expected)


def test_snapkv_on_smollm2_is_its_own_choice():
    model, _ = smollm2()
    ids, press, chosen = prose_ids(512), kvpress.SnapKVPress(0.5), []
    score = press.score

    def noting(*given):
        scores = score(*given)
        kept = scores.topk(256, dim=-1).indices[0]
        chosen.append(torch.zeros(scores.shape[1:], dtype=torch.bool).scatter_(1, kept, True))
        return scores

    press.score = noting
    mask = capture(model, {"snapkv": press}, ids).masks["snapkv"]
    assert (mask.array == torch.stack(chosen).numpy()).all()


def test_presses_with_passes_of_their_own_on_smollm2():
    model, _ = smollm2()
    found = capture(
        model, {"kvzip": kvpress.KVzipPress(0.5), "knorm": kvpress.KnormPress(0.5)}, prose_ids(128)
    )
    assert list(found.masks) == ["kvzip", "knorm"]
    assert found.retained == pytest.approx({"kvzip": 0.5, "knorm": 0.5}, abs=0.005)


def test_only_full_layers_of_a_hybrid_model_are_evicted_from():
    chosen = [
        "knorm",
        "snapkv:window_size=8",
        "adakv:knorm",
        "h2o",
        "block-wise:window_size=8",
        "streaming-llm",
    ]
    found = capture(tiny_gemma3(16), presses(chosen=[*chosen, WEIGHED]), random_ids(TOKENS))
    for mask in found.masks.values():
        assert mask.array.shape == (4, 1, TOKENS)
        assert mask.array[[0, 2]].all()
        assert (mask.array[[1, 3]].sum(axis=-1) == TOKENS // 2).all()


def test_nothing_to_press():
    found = capture(tiny_llama(), {}, random_ids(TOKENS))
    assert found.masks == {}
    assert found.cache.get_seq_length() == TOKENS


def test_the_model_is_left_as_it_was():
    model = tiny_llama()
    before = hooks(model)
    capture(model, presses(chosen=["adakv:knorm", WEIGHED]), random_ids(TOKENS))
    assert hooks(model) == before
    assert model.config._attn_implementation == "sdpa"
    assert all(layer.self_attn.masked_key_indices is None for layer in model.model.layers)


def test_a_model_in_eager_attention():
    model = tiny_llama(4, 2, "eager")
    found = capture(model, presses(chosen=["adakv:knorm", "h2o", WEIGHED]), random_ids(TOKENS))
    assert model.config._attn_implementation == "eager"
    assert set(found.retained.values()) == {0.5}


def test_inside_inference_mode(captured):
    with torch.inference_mode():
        found = capture(tiny_llama(), presses(chosen=["knorm"]), random_ids(TOKENS))
    assert (found.masks["knorm"].array == captured.masks["knorm"].array).all()


class InPlace(kvpress.KnormPress):
    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        values.mul_(2)
        return super().compress(module, hidden_states, keys, values, attentions, kwargs)


class Failing(kvpress.KnormPress):
    def score(self, *_):
        raise ValueError("no\nway")


@pytest.mark.parametrize(
    "press, said",
    [
        (InPlace(0.5), "^it: layer 0|^it: it writes to the rows in place"),
        (Failing(0.5), r"^it: fails on this model or prompt \(no way\)"),
        (kvpress.MergingPress(kvpress.KnormPress(0.5)), "^it: it merges the values"),
        (kvpress.KeyRerotationPress(kvpress.KnormPress(0.5)), "^it: it re-rotates the keys"),
        (kvpress.ThinKPress(0.5), "^it: it clears channels"),
        (kvpress.DecodingPress(kvpress.KnormPress()), "^it: it evicts while decoding"),
        (kvpress.AdaKVPress(kvpress.ObservedAttentionPress(0.5)), "^it: .* needs attention weights"),
        (
            kvpress.KnormPress(0.995),
            r"^it: ratio 0.995 keeps nothing of 96 tokens; pass one from 0 to 0\.9895",
        ),
        (kvpress.SnapKVPress(0.5, window_size=96), r"^it: fails on this model or prompt \(Query length 96"),
        (kvpress.KVzipPress(0.5), "^it: fails on this model or prompt"),
        (
            kvpress.ChunkKVPress(kvpress.KnormPress(0.5), chunk_length=0),
            "^it: fails .* pass other parameters",
        ),
        (kvpress.LagKVPress(0.5, lag_size=0), "^it: fails .* pass other parameters"),
    ],
)
def test_presses_that_cannot_be_captured(press, said):
    with pytest.raises(InputError, match=said) as caught:
        capture(tiny_llama(), {"it": press}, random_ids(TOKENS))
    assert "\n" not in str(caught.value)


def test_prompts_that_cannot_be_read():
    model, press = tiny_llama(), {"knorm": kvpress.KnormPress(0.5)}
    with pytest.raises(InputError, match="257 tokens, and llama takes 256: pass a shorter prompt"):
        capture(model, press, random_ids(257))
    for shape in ((2, 8), (1, 0), (8,)):
        with pytest.raises(InputError, match=r"pass one prompt, \[1, tokens\]"):
            capture(model, press, torch.zeros(shape, dtype=torch.int64))


def test_masks_are_numpy_and_frozen(captured):
    array = captured.masks["h2o"].array
    assert isinstance(array, np.ndarray)
    assert not array.flags.writeable
