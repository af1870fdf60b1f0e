"""Known models: KiB per token by hand, and how a model is looked up."""

import json

import pytest

from kvreclaim.errors import InputError
from kvreclaim.layout.models import model, models

# KiB of keys and values per token, by hand: 2 (K, V) x layers x KV heads x head size x bytes.
KIB_PER_TOKEN = {
    "llama-2-7b": 512,  # 2 * 32 * 32 * 128 * 2 B
    "llama-2-13b": 800,
    "llama-2-70b": 320,
    "llama-3-8b": 128,
    "llama-3-70b": 320,
    "llama-3.1-8b": 128,
    "llama-3.1-70b": 320,
    "llama-3.1-405b": 504,
    "llama-3.2-1b": 32,
    "llama-3.2-3b": 112,
    "opt-13b": 800,
    "yi-6b": 64,
    "falcon-7b": 8,
    "mistral-7b": 128,
    "mistral-7b-v0.3": 128,
    "mixtral-8x7b": 128,
    "phi-3-mini": 384,
    "qwen2.5-0.5b": 12,
    "qwen2.5-7b": 56,
    "qwen2.5-math-7b": 56,
    "qwen3-0.6b": 112,
    "qwen3-4b": 144,
    "qwen3-8b": 144,
    "qwen3-14b": 160,
    "qwen3-32b": 256,
    "gemma-2-9b": 336,
    "gemma-3-270m": 18,
    "gpt-oss-20b": 48,
    "smollm2-135m": 22.5,
    "smollm2-360m": 40,
}


def test_kib_per_token():
    assert {entry.name: entry.geometry.bytes_per_token / 1024 for entry in models()} == KIB_PER_TOKEN


def test_a_qwen3_4b_page_of_1024_tokens_is_144_mib():
    # kvcached's figure: one page id is 64 blocks of 16 tokens over K, V and all layers.
    assert 64 * 16 * model("qwen3-4b").bytes_per_token == 144 * 2**20


@pytest.mark.parametrize(
    ("name", "sliding", "full"),
    [
        ("mistral-7b", range(32), ()),
        ("phi-3-mini", range(32), ()),
        ("gemma-2-9b", range(0, 42, 2), range(1, 42, 2)),
        ("gpt-oss-20b", range(0, 24, 2), range(1, 24, 2)),
        ("gemma-3-270m", sorted(set(range(18)) - {5, 11, 17}), (5, 11, 17)),
    ],
)
def test_layers_that_slide(name, sliding, full):
    windows = model(name).windows
    assert [layer for layer, window in enumerate(windows) if window] == list(sliding)
    assert [layer for layer, window in enumerate(windows) if not window] == list(full)


def test_the_other_models_see_everything():
    sliding = {entry.name for entry in models() if entry.geometry.windows}
    assert sliding == {"mistral-7b", "phi-3-mini", "gemma-2-9b", "gpt-oss-20b", "gemma-3-270m"}


def test_names_and_hub_ids_in_any_case():
    assert model("meta-llama/Meta-Llama-3-8B") is model("Llama-3-8B")
    assert model("qwen/qwen3-8b-BASE") is model("qwen3-8b")


def test_each_model_is_found_by_all_its_names_and_says_its_source():
    for entry in models():
        assert all(model(name) is entry.geometry for name in (entry.name, *entry.hub_ids))
        assert entry.source == entry.hub_ids[0] + "/config.json"


def test_a_path(tmp_path):
    config = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model(tmp_path).bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert model(str(tmp_path / "config.json")) == model(tmp_path)


def test_unknown_model_says_what_to_pass():
    with pytest.raises(
        InputError, match=r"unknown model 'gpt-5': pass a config.json, a model directory, or one of"
    ):
        model("gpt-5")


def test_a_directory_without_config(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        model(tmp_path)
