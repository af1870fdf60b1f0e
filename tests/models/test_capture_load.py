"""Loading: local directories, and refusals of models whose cache can't be audited, by name."""

import json

import pytest
from small_models import tiny_llama, transformers

from kvreclaim import InputError
from kvreclaim.capture.inside.attention_layers import attention_layers, evictable, geometry_of
from kvreclaim.capture.models import load


@pytest.fixture
def local(tmp_path):
    """A directory of a tiny Llama with a tokenizer."""
    from tokenizers import Tokenizer, models

    tiny_llama().save_pretrained(tmp_path / "tiny")
    words = Tokenizer(models.WordLevel({str(i): i for i in range(97)}, unk_token="0"))  # noqa: S106  # a word
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_a_local_directory(local):
    model, tokenizer = load(local)
    assert (geometry_of(model.config).layers, geometry_of(model.config).kv_heads) == (3, 2)
    assert tokenizer.vocab_size == 97
    assert not model.training


@pytest.mark.parametrize(
    "family, reason",
    [
        ("deepseek_v3", "latent"),
        ("mamba", "recurrent state"),
        ("jamba", "recurrent state"),
        ("qwen3_next", "recurrent state"),
        ("rwkv", "recurrent state"),
        ("bert", "an encoder keeps no cache"),
        ("t5", "encoder-decoder"),
        ("gemma3n_text", "share the K and V of others"),
    ],
)
def test_caches_that_cannot_be_audited(tmp_path, family, reason):
    transformers.AutoConfig.for_model(family).save_pretrained(tmp_path / f"some-{family}")
    with pytest.raises(
        InputError, match=f"^some-{family} .*does not cache one K and one V per head: .*{reason}"
    ):
        load(tmp_path / f"some-{family}")


def test_layers_that_kvpress_cannot_reach(tmp_path):
    config = transformers.GPT2Config(vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    model = transformers.GPT2LMHeadModel(config)
    with pytest.raises(InputError, match=r"^gpt2 \(gpt2\) has no model.layers: kvpress can't reach"):
        attention_layers(model)


def test_names_that_are_no_model(tmp_path, monkeypatch):
    monkeypatch.setenv("KVRECLAIM_MODELS", str(tmp_path))
    with pytest.raises(
        InputError, match="smollm2-135m is not here yet: run kvreclaim models fetch smollm2-135m"
    ):
        load("smollm2-135m")
    with pytest.raises(InputError, match="no model 'smollm3': pass a directory, an id on"):
        load("smollm3")
    with pytest.raises(InputError, match=r"has no config\.json"):
        load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file: pass the directory"):
        load(tmp_path / "file")


def damage_config(directory):
    (directory / "config.json").write_text('{"model_type": "llama"')


def of_no_family(directory):
    (directory / "config.json").write_text('{"model_type": "hal9000"}')


def lose_weights(directory):
    (directory / "model.safetensors").unlink()


def cut_weights(directory):
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])


def add_a_layer(directory):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))


def take_a_layer(directory):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))


def widen(directory):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 50}))


def damage_tokenizer(directory):
    (directory / "tokenizer.json").write_text("{")


def lose_tokenizer(directory):
    for file in directory.glob("token*"):
        file.unlink()


@pytest.mark.parametrize(
    "damage, said",
    [
        (damage_config, "its config can't be loaded"),
        (of_no_family, "its config can't be loaded"),
        (lose_weights, "its weights can't be loaded"),
        (take_a_layer, r"weights of more layers than its config says, such as model\.layers\.2\."),
        (widen, r"\(weights of other shapes than its config says\)"),
        (cut_weights, "its weights can't be loaded"),
        (add_a_layer, "lacks 9 weights, such as model.layers.3"),
        (lose_tokenizer, "has no tokenizer: pass a directory with a tokenizer.json"),
        (damage_tokenizer, "its tokenizer can't be loaded"),
    ],
)
def test_broken_directories(local, damage, said):
    damage(local)
    with pytest.raises(InputError, match=said) as caught:
        load(local)
    assert "\n" not in str(caught.value)


def test_which_layers_are_evicted_from():
    def config(**sliding):
        return transformers.MistralConfig(
            vocab_size=97,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            **sliding,
        )

    every = transformers.MistralForCausalLM(config(sliding_window=8))
    assert evictable(every, 8) == (True, True)
    with pytest.raises(InputError, match="every layer of mistral slides over 8 tokens"):
        evictable(every, 9)
    assert evictable(transformers.MistralForCausalLM(config(sliding_window=None)), 9) == (True, True)
