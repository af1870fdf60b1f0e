"""Quality against its definitions, written out token by token in float64, and on SmolLM2."""

import numpy as np
import pytest
from small_models import prefill, prose_ids, random_ids, smollm2, tiny_gemma3, tiny_llama, torch

from kvreclaim import InputError, KeepMask
from kvreclaim.capture.prefill import capture
from kvreclaim.capture.presses import make
from kvreclaim.capture.quality import Continuation, quality
from kvreclaim.capture.quality.replay import replay_logits

TOKENS, NEXT = 40, 25


@pytest.fixture(params=[tiny_llama, tiny_gemma3], ids=["llama", "gemma"])
def case(request):
    model = request.param()
    ids = random_ids(TOKENS + NEXT, seed=3)
    cache = prefill(model, ids[:, :TOKENS])
    shape = (model.config.num_hidden_layers, model.config.num_key_value_heads, TOKENS)
    return model, cache, KeepMask(np.random.default_rng(4).random(shape) < 0.5), ids[0, TOKENS:]


def test_quality_is_what_it_is_defined_to_be(case):
    model, cache, mask, next_ids = case
    kl, rise, same = [], [], []
    full_logits = replay_logits(model, cache, None, next_ids).double().numpy()
    masked_logits = replay_logits(model, cache, mask, next_ids).double().numpy()
    for place, (full, masked) in enumerate(zip(full_logits, masked_logits, strict=True)):
        p, q = (np.exp(logits) / np.exp(logits).sum() for logits in (full, masked))
        kl.append((p * np.log(p / q)).sum())
        same.append(p.argmax() == q.argmax())
        if place + 1 < NEXT:
            actual = int(next_ids[place + 1])
            rise.append(np.log(p[actual]) - np.log(q[actual]))
    found = quality(model, cache, mask, next_ids)
    assert found.kl == pytest.approx(np.mean(kl), rel=1e-4)
    assert found.kl_std == pytest.approx(np.std(kl), rel=1e-4)
    assert found.delta_nll == pytest.approx(np.mean(rise), rel=1e-4)
    assert found.delta_nll_std == pytest.approx(np.std(rise), rel=1e-4)
    assert found.top1 == np.mean(same)
    assert found.tokens == NEXT
    assert found.kl > 0.01


def test_keeping_everything_costs_nothing(case):
    model, cache, mask, next_ids = case
    found = quality(model, cache, KeepMask(np.ones_like(mask.array)), next_ids)
    assert (found.kl, found.kl_std, found.delta_nll, found.delta_nll_std, found.top1) == (0, 0, 0, 0, 1)


def test_the_full_side_is_computed_once(case, monkeypatch):
    model, cache, mask, next_ids = case
    continuation = Continuation(model, cache, next_ids[None])
    assert continuation.tokens == NEXT
    replayed = []
    monkeypatch.setattr(
        "kvreclaim.capture.quality.figures.replay_logits",
        lambda *arguments: replayed.append(arguments[2]) or replay_logits(*arguments),
    )
    assert continuation.quality(mask) == continuation.quality(mask) == quality(model, cache, mask, next_ids)
    assert replayed == [mask, mask, None, mask]


def test_nll_of_the_full_cache_is_the_models_loss():
    model = tiny_llama()
    ids = random_ids(TOKENS + NEXT, seed=3)
    labels = ids.clone()
    labels[:, : TOKENS + 1] = -100
    with torch.no_grad():
        loss = model(input_ids=ids, labels=labels).loss.item()
    continuation = Continuation(model, prefill(model, ids[:, :TOKENS]), ids[0, TOKENS:])
    assert continuation.nll == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("shape", [(1,), (0,), (2, 5)])
def test_one_sequence_of_two_tokens_is_the_least(case, shape):
    model, cache, mask, _ = case
    with pytest.raises(InputError, match="pass at least two tokens"):
        quality(model, cache, mask, torch.zeros(shape, dtype=torch.long))


def test_smollm2_loses_more_the_more_is_evicted_and_most_at_random():
    model, _ = smollm2()
    tokens = 768
    ids = prose_ids(tokens + 96)
    presses = {f"snapkv {ratio}": make("snapkv", ratio, tokens) for ratio in (0.25, 0.5, 0.75)}
    captured = capture(model, {**presses, "random": make("random", 0.5, tokens)}, ids[:, :tokens])
    continuation = Continuation(model, captured.cache, ids[0, tokens:])
    found = {name: continuation.quality(mask) for name, mask in captured.masks.items()}
    assert 1.5 < continuation.nll < 3.5
    assert 0 < found["snapkv 0.25"].kl < found["snapkv 0.5"].kl < found["snapkv 0.75"].kl < found["random"].kl
    assert found["snapkv 0.5"].kl < 0.1 and found["snapkv 0.5"].top1 > 0.85
    assert found["random"].top1 < found["snapkv 0.5"].top1
