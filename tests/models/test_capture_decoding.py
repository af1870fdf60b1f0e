"""Evictions over a generation, against closed forms, brute force and kvpress's own."""

import numpy as np
import pytest
from small_models import hooks, kvpress, prose_ids, random_ids, smollm2, tiny_gemma3, tiny_llama, torch
from test_capture_policies import brute_h2o

from kvreclaim import BlockLayout, InputError, audit
from kvreclaim.capture.decoding import record_decoding
from kvreclaim.capture.presses.decoding import make_decoding
from kvreclaim.capture.series import NEVER, DecodingRecord

PROMPT, STEPS = 40, 60


def rolling(tokens, target, sinks=4):
    """The keep mask of StreamingLLM once so many tokens are read."""
    keep = np.ones(tokens, bool)
    if tokens > target:
        keep[sinks : tokens - (target - sinks)] = False
    return keep


@pytest.mark.parametrize("sinks", [0, 4])
def test_the_rolling_window(sinks):
    press = make_decoding(f"streaming-llm:sinks={sinks}", 24)
    found = record_decoding(tiny_llama(), press, random_ids(PROMPT), STEPS, name="streaming-llm")
    for step in range(STEPS + 1):
        expected = rolling(PROMPT + step, 24, sinks)
        assert (found.mask(step).array == expected).all()


def test_streaming_llm_on_smollm2_over_256_tokens():
    model, _ = smollm2()
    found = record_decoding(
        model, make_decoding("streaming-llm", 96), prose_ids(128), 256, name="streaming-llm"
    )
    ledgers = found.ledgers(BlockLayout(16))
    assert list(ledgers) == list(range(257))
    assert (found.model, found.prompt_length, found.steps) == ("smollm2-135m", 128, 256)
    for step, ledger in ledgers.items():
        expected = audit(rolling(128 + step, 96), BlockLayout(16))
        assert ledger.blocks == expected.blocks
        assert ledger.free_blocks == expected.free_blocks
    held = [ledger.blocks - ledger.free_blocks for ledger in ledgers.values()]
    assert max(held) <= 96 // 16 + 2  # the window rolls: what is held does not grow


def test_a_target_above_the_whole_generation():
    found = record_decoding(tiny_llama(), make_decoding("h2o", 200), random_ids(PROMPT), 8)
    assert (found.evicted_at == NEVER).all()


def test_h2o_by_brute_force():
    """Follow the model's own queries and keys, and add up attention among the living by hand."""
    model, prompt, target = tiny_llama(), random_ids(PROMPT), 16
    continuation = random_ids(STEPS, seed=1)
    queries, keys = {}, {}

    class Noting(type(make_decoding("h2o", 1))):
        def forward_hook(self, module, args, kwargs, output):
            from kvreclaim.capture.inside.queries import latest_queries

            new = latest_queries(module)
            rows = kwargs["past_key_values"].layers[module.layer_idx].keys[0, :, -new.shape[1] :]
            queries.setdefault(module.layer_idx, []).append(new)
            keys.setdefault(module.layer_idx, []).append(rows)
            return super().forward_hook(module, args, kwargs, output)

    found = record_decoding(model, Noting(target, 0.5), prompt, STEPS, continuation=continuation)
    assert found.token_ids == tuple(continuation[0].tolist())
    for layer, head in np.ndindex(3, 2):
        own = torch.cat(queries[layer], dim=1)[2 * head : 2 * head + 2]
        every_key = torch.cat(keys[layer], dim=1)[head]

        def weights_of(token, living, own=own, every_key=every_key):
            return (own[:, token] @ every_key[living].T * 8**-0.5).softmax(-1).mean(0).tolist()

        after = brute_h2o(weights_of, PROMPT + STEPS, target, target // 2, lambda read: read >= PROMPT)
        for step in (0, 1, 2, 17, STEPS):
            kept = np.flatnonzero(found.mask(step).array[layer, head])
            assert kept.tolist() == after[PROMPT + step - 1]


def test_kvpress_decoding_press():
    press = make_decoding("decoding:compression_interval=8:knorm", 24)
    found = record_decoding(tiny_llama(), press, random_ids(PROMPT), STEPS)
    kept = [found.mask(step).array.sum(axis=-1) for step in range(STEPS + 1)]
    for step, per_head in enumerate(kept):
        assert (per_head == (PROMPT + step if step < 8 else 24 + step % 8)).all()


def test_decoding_press_keeps_the_smallest_key_norms():
    press, chosen = make_decoding("decoding:compression_interval=8:knorm", 24), {}
    compress = press.compress

    def noting(module, hidden, keys, *rest):
        order = keys[0].norm(dim=-1).argsort(-1)
        chosen.setdefault(module.layer_idx, []).append(order[:, :24].sort(-1).values)
        return compress(module, hidden, keys, *rest)

    press.compress = noting
    found = record_decoding(tiny_llama(), press, random_ids(PROMPT), 8)
    for layer, (first,) in chosen.items():
        places = [np.flatnonzero(head).tolist() for head in found.mask(8).array[layer]]
        assert places == first.tolist()


def test_marks_over_a_generation():
    """AdaKV only marks rows dead; a press that revives what it had marked is refused, one clear line."""
    press = kvpress.DecodingPress(kvpress.AdaKVPress(kvpress.KnormPress()), 8, 24)
    found = record_decoding(tiny_llama(), press, random_ids(PROMPT), 12)
    kept = found.mask(12).array.sum(axis=(1, 2))
    assert (kept == 2 * 24 + 2 * 4).all()


def test_only_full_layers_of_a_hybrid_model_are_evicted_from():
    for name in ("h2o", "streaming-llm"):
        found = record_decoding(tiny_gemma3(16), make_decoding(name, 24), random_ids(PROMPT), 10)
        last = found.mask(10).array
        assert last[[0, 2]].all()
        assert (last[[1, 3]].sum(axis=-1) == 24).all()


def test_what_is_gone_stays_gone():
    found = record_decoding(tiny_llama(), make_decoding("h2o", 16), random_ids(PROMPT), 20)
    for step in range(20):
        before, after = found.mask(step).array, found.mask(step + 1).array
        assert not (after[:, :, : PROMPT + step] & ~before).any()
        assert after[:, :, -1].all()  # the newest token is in the recent window


def test_the_same_again():
    one, other = (
        record_decoding(tiny_llama(), make_decoding("decoding:kvpress-random", 24), random_ids(PROMPT), 70)
        for _ in range(2)
    )
    assert one.token_ids == other.token_ids
    assert (one.evicted_at == other.evicted_at).all()


def test_the_model_is_left_as_it_was():
    model = tiny_llama(4, 2, "eager")
    before = hooks(model)
    record_decoding(model, make_decoding("h2o", 16), random_ids(PROMPT), 2)
    assert model.config._attn_implementation == "eager"
    assert hooks(model) == before


@pytest.mark.parametrize(
    "text, target, said",
    [
        (
            "snapkv",
            8,
            "no press 'snapkv' that evicts while decoding: pass one of decoding:PRESS, h2o, paged-eviction, ",
        ),
        ("decoding", 8, "decoding wraps a press"),
        ("decoding:adakv:knorm", 8, "decoding takes no adakv"),
        ("h2o:stride=3", 8, "h2o has no parameter stride: it takes recent_share"),
        ("h2o:recent_share=3", 8, "recent_share is 3: pass a number from 0 to 1"),
        ("h2o:knorm", 8, "knorm follows a press that wraps none"),
        ("h2o", 0, "target_size is 0"),
        ("streaming-llm:sinks=8", 8, "a target_size of 8 and 8 sinks: pass fewer sinks"),
        ("decoding:compression_interval=0:knorm", 8, "compression_interval must be greater than 0"),
    ],
)
def test_bad_names(text, target, said):
    with pytest.raises(InputError, match=said):
        make_decoding(text, target)


def test_bad_generations():
    model, press = tiny_llama(), make_decoding("h2o", 8)
    with pytest.raises(InputError, match="300 tokens, and llama takes 256"):
        record_decoding(model, press, random_ids(250), 50)
    with pytest.raises(InputError, match="new_tokens is 0"):
        record_decoding(model, press, random_ids(8), 0)
    with pytest.raises(InputError, match="a continuation of 3 tokens for 4 steps"):
        record_decoding(model, press, random_ids(8), 4, continuation=random_ids(3))
    observed = kvpress.DecodingPress(kvpress.ObservedAttentionPress(), 2, 4)
    with pytest.raises(InputError, match=r"^weights: fails on this model"):
        record_decoding(model, observed, random_ids(8), 4, name="weights")


def test_a_series_by_hand():
    evicted_at = np.array([[[0, 1, NEVER, 2, NEVER]]], np.int32)
    series = DecodingRecord("it", "model", 3, evicted_at, (7, 8))
    assert [series.mask(step).array[0, 0].tolist() for step in range(3)] == [
        [False, True, True],
        [False, False, True, True],
        [False, False, True, False, True],
    ]
    assert [ledger.blocks for ledger in series.ledgers(BlockLayout(2)).values()] == [2, 2, 3]
    assert list(series.ledgers(BlockLayout(2), steps=[0, 2])) == [0, 2]
    with pytest.raises(InputError, match="step 3: pass one from 0 to 2"):
        series.mask(3)
