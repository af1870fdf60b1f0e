"""Models that the tests run: SmolLM2 where it was fetched, and tiny random ones for the shapes.

With KVRECLAIM_REQUIRE_MODEL=1 in the environment a missing package or model is a failure.
"""

import os
from functools import cache
from importlib import import_module
from pydoc_data.topics import topics

import pytest

REQUIRED = os.environ.get("KVRECLAIM_REQUIRE_MODEL") == "1"


def _extra(package):
    if REQUIRED:
        return import_module(package)
    return pytest.importorskip(package, reason="needs the extra: pip install 'kvreclaim[models]'")


torch, transformers, kvpress = map(_extra, ("torch", "transformers", "kvpress"))

from kvreclaim.capture import models  # noqa: E402  # torch must be there
from kvreclaim.errors import InputError  # noqa: E402

torch.set_num_threads(1)


@cache
def smollm2():
    """SmolLM2-135M and its tokenizer."""
    try:
        return models.load("smollm2-135m")
    except InputError as error:
        if REQUIRED:
            raise
        pytest.skip(str(error))


@cache
def prose():
    """English text that comes with Python."""
    return "\n\n".join(topics[name] for name in sorted(topics))


@cache
def prose_ids(tokens):
    """The first tokens of the prose, [1, tokens], in SmolLM2's vocabulary."""
    _, tokenizer = smollm2()
    return tokenizer(prose()[: 8 * tokens], return_tensors="pt", add_special_tokens=False).input_ids[
        :, :tokens
    ]


@cache
def tiny_llama(heads=4, kv_heads=2, attention="sdpa"):
    """A random Llama of 3 layers."""
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=256,
        attn_implementation=attention,
    )
    return _random(transformers.LlamaForCausalLM, config)


@cache
def tiny_gemma3(window=16):
    """A random Gemma 3 of 4 layers and 1 KV head; every other layer slides."""
    config = transformers.Gemma3TextConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=256,
        sliding_window=window,
        layer_types=["sliding_attention", "full_attention"] * 2,
        attn_implementation="sdpa",
    )
    return _random(transformers.Gemma3ForCausalLM, config)


@cache
def tiny_gemma2():
    """A random Gemma 2 in eager attention, for only that caps its attention logits."""
    config = transformers.Gemma2Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        sliding_window=16,
        attn_logit_softcapping=0.5,
        query_pre_attn_scalar=8,
        attn_implementation="eager",
    )
    return _random(transformers.Gemma2ForCausalLM, config)


def _random(kind, config):
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(4)  # far from uniform attention, so that what is masked matters
    return model


def random_ids(tokens, seed=0):
    """Random token ids of the tiny models, [1, tokens]."""
    return torch.randint(0, 97, (1, tokens), generator=torch.Generator().manual_seed(seed))


def hooks(model):
    """How many hooks each attention layer has; transformers leaves one of its own for output_attentions."""
    return [len(layer.self_attn._forward_hooks) for layer in model.model.layers]


def prefill(model, ids, cache=None):
    """The full cache of a prompt, [1, tokens]."""
    full = transformers.DynamicCache() if cache is None else cache
    with torch.no_grad():
        model.model(input_ids=ids, past_key_values=full, use_cache=True)
    return full
