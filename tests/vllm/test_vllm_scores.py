"""Scores inside the engine, against attention weights that Hugging Face gives out."""

from unittest.mock import patch

import numpy as np
import pytest
import torch

from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm import worker
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.scores.centres_file import CentresFile
from kvreclaim.scores.distance import QueryCentres, triattention_scores
from kvreclaim.scores.redundancy import rkv_scores


def scores_in_the_engine(engine, prompt, options, tokens_per_step):
    with patch.object(worker, "select", wraps=worker.select) as select:
        engine.run([prompt], options, 2, tokens_per_step=tokens_per_step)
    return select.call_args_list[0].args[1]


def by_kv_head(weights):
    """Mean over the query heads that share a KV head: [layers, heads, ...] to [layers, kv_heads, ...]."""
    return weights.unflatten(1, (3, 3)).mean(2)


def trailing(weights, looking):
    """Attention from the last queries, for each pair from as many of them as come after it."""
    tokens = weights.shape[-1]
    return weights[:, :, -looking:].sum(2) / torch.arange(tokens, 0, -1).clamp_max(looking)


@pytest.fixture(scope="module")
def expected(reference, prompts):
    weights, keys = reference.attentions(prompts[1])
    states = reference.states(prompts[1])
    last = weights[:, :, -1].mean(1, keepdim=True).expand(-1, 3, -1)
    return {
        "snapkv": by_kv_head(weights[:, :, -32:].mean(2)),
        "tova": last,
        "h2o": by_kv_head(weights.sum(2)),
        "knorm": keys.norm(dim=-1),
        "rkv": torch.stack([rkv_scores(query, key, 64**-0.5) for query, key, _ in states]),
        "paged-eviction": torch.stack([value.norm(dim=-1) / key.norm(dim=-1) for _, key, value in states]),
        "block-joint": by_kv_head(trailing(weights, 32)),
    }


@pytest.mark.parametrize("tokens_per_step", [1024, 100], ids=["whole", "chunked"])
@pytest.mark.parametrize("policy", ["snapkv", "tova", "h2o", "knorm", "rkv", "paged-eviction", "block-joint"])
def test_scores_are_those_of_the_attention_weights(engine, prompts, expected, policy, tokens_per_step):
    windows = {"snapkv": {"window": 32}, "rkv": {"window": 8}, "block-joint": {"window": 32, "recent": 1}}
    options = Options(policy, 64, **windows.get(policy, {}))
    found = scores_in_the_engine(engine, prompts[1], options, tokens_per_step)
    np.testing.assert_allclose(found, expected[policy].numpy(), rtol=2e-3, atol=2e-5)


def test_triattention_scores_are_those_of_the_keys_with_the_centres_of_the_file(
    engine, reference, prompts, tmp_path
):
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in ((30, 9, 64), (30, 9, 32), (32,))]
    centre, spread, rates = drawn[0], drawn[1].abs(), drawn[2].abs()
    file = tmp_path / "centres.npz"
    CentresFile(*(part.numpy() for part in (centre, spread, rates))).save(file)
    options = Options("triattention", 64, window=16, centres=str(file))
    found = scores_in_the_engine(engine, prompts[1], options, None)
    tokens = len(prompts[1])
    for layer, (_, keys, _) in enumerate(reference.states(prompts[1])):
        of_layer = QueryCentres(centre[layer], spread[layer])
        expected = triattention_scores(of_layer, keys, rates, tokens)
        expected[:, -16:] = expected.max() + 1
        expected -= expected.min(dim=-1, keepdim=True).values
        np.testing.assert_allclose(found[layer], expected, rtol=2e-3, atol=2e-3)
    CentresFile(centre[:2].numpy(), spread[:2].numpy(), rates.numpy()).save(file)
    with pytest.raises(InputError, match="the model \\(30, 9, 64\\): calibrate it"):
        engine.configure(options)


def test_h2o_holds_a_tile_of_weights_and_no_more(engine, prompts):
    from kvreclaim.runtimes.vllm import scoring

    largest = 0
    made = scoring._logits

    def watching(*args):
        nonlocal largest
        logits = made(*args)
        largest = max(largest, logits[0, 0].numel())
        return logits

    with patch.multiple(scoring, QUERY_TILE=16, KEY_TILE=64, _logits=watching):
        small = scores_in_the_engine(engine, prompts[1], Options("h2o", 64), None)
    assert largest <= 16 * 64
    whole = scores_in_the_engine(engine, prompts[1], Options("h2o", 64), None)
    torch.testing.assert_close(torch.from_numpy(small), torch.from_numpy(whole), rtol=1e-4, atol=1e-5)
