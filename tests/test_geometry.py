"""KV geometry: bytes by hand, layer groups, and the ways configs say the same thing."""

import json

import pytest

from kvreclaim.errors import InputError
from kvreclaim.layout.config import geometry_from_config
from kvreclaim.layout.geometry import DTYPE_BYTES, KVGeometry, sliding_windows
from kvreclaim.layout.tables import BlockLayout, LayerGroup

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
SMALL = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 64}


def shape(geometry):
    return geometry.layers, geometry.kv_heads, geometry.head_dim


# bytes


def test_bytes_by_hand():
    geometry = KVGeometry("tiny", layers=3, kv_heads=2, head_dim=8, dtype="float32")
    assert geometry.bytes_per_pair == 8 * 4 + 8 * 4
    assert geometry.bytes_per_token == 6 * 64


def test_two_bytes_an_element_unless_told_otherwise():
    assert KVGeometry("m", 1, 1, 1).bytes_per_token == 4


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_element_sizes_are_the_widths_in_the_names(dtype):
    bits = next(int(width) for width in ("32", "16", "8") if width in dtype)
    assert KVGeometry("m", 1, 1, 1, dtype).bytes_per_pair == 2 * bits // 8


@pytest.mark.parametrize("page", [64, 128, 256, 2048])  # KiB; serving-reference's table of vAttention
def test_tokens_of_a_page_as_vattention_has_them(page):
    # One layer, K alone, of Llama-3-8B: 32 tokens in 64 KiB.
    one_layer = KVGeometry("llama-3-8b", 1, 8, 128).bytes_per_token // 2
    assert page * 1024 // one_layer == {64: 32, 128: 64, 256: 128, 2048: 1024}[page]


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8", None])
def test_numbers_must_be_positive_integers(field, value):
    numbers = {"layers": 2, "kv_heads": 2, "head_dim": 8} | {field: value}
    with pytest.raises(InputError, match=f"{field} of m is .*: pass a whole number"):
        KVGeometry("m", **numbers)


def test_unknown_dtype_lists_the_known_ones():
    with pytest.raises(InputError, match="dtype of m is 'int4': pass one of float32, float16"):
        KVGeometry("m", 1, 1, 1, "int4")


def test_there_is_one_window_a_layer():
    with pytest.raises(InputError, match="m has 3 layers and 2 windows"):
        KVGeometry("m", 3, 1, 1, windows=(4, None))
    with pytest.raises(InputError, match="a window of m is 0"):
        KVGeometry("m", 1, 1, 1, windows=(0,))


# layer groups


def test_a_model_without_windows_is_one_group():
    assert KVGeometry("m", 3, 1, 1).layer_groups() == (LayerGroup((0, 1, 2)),)
    assert KVGeometry("m", 2, 1, 1, windows=(None, None)) == KVGeometry("m", 2, 1, 1)


def test_groups_gather_the_layers_of_a_window():
    geometry = KVGeometry("m", 4, 1, 1, windows=(16, None, 16, None))
    assert geometry.layer_groups() == (LayerGroup((0, 2), 16), LayerGroup((1, 3)))
    assert BlockLayout(groups=geometry.layer_groups()).groups_of(4) == geometry.layer_groups()


def test_sliding_windows():
    assert sliding_windows(2, 8) == (8, 8)
    assert sliding_windows(5, 8, full_every=2) == (8, None, 8, None, 8)


# configs


def test_a_plain_config():
    geometry = geometry_from_config(LLAMA)
    assert shape(geometry) == (32, 8, 128)
    assert (geometry.name, geometry.dtype, geometry.windows) == ("llama", "bfloat16", ())
    assert geometry.bytes_per_token == 128 * 1024


def test_missing_kv_heads_are_as_many_as_query_heads():
    assert shape(geometry_from_config(SMALL)) == (4, 4, 16)
    assert shape(geometry_from_config(SMALL | {"num_key_value_heads": None})) == (4, 4, 16)


def test_head_dim_goes_before_the_quotient():
    assert shape(geometry_from_config(SMALL | {"head_dim": 32})) == (4, 4, 32)


def test_gpt2_names():
    assert shape(geometry_from_config({"n_layer": 12, "n_head": 12, "n_embd": 768})) == (12, 12, 64)


def test_opt_names():
    config = {
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "hidden_size": 5120,
        "torch_dtype": "float16",
    }
    assert geometry_from_config(config).bytes_per_token == 800 * 1024


def test_dbrx_names():
    config = {"n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8}}
    assert shape(geometry_from_config(config)) == (40, 8, 128)


@pytest.mark.parametrize(
    ("more", "kv_heads"),
    [
        ({"multi_query": True}, 1),
        ({"multi_query": True, "num_kv_heads": 4}, 1),
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 2}, 2),
        ({"multi_query": False}, 4),
        ({"multi_query_group_num": 2}, 2),
    ],
)
def test_multi_query(more, kv_heads):
    assert geometry_from_config(SMALL | more).kv_heads == kv_heads


@pytest.mark.parametrize(
    ("more", "dtype"),
    [
        ({}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "float32"}, "float32"),
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({"torch_dtype": None, "dtype": "float16"}, "float16"),
    ],
)
def test_dtype(more, dtype):
    assert geometry_from_config(SMALL | more).dtype == dtype


def test_the_language_model_inside_a_larger_one():
    config = {"model_type": "gemma3", "torch_dtype": "float16", "text_config": {**SMALL, "torch_dtype": None}}
    geometry = geometry_from_config(config)
    assert shape(geometry) == (4, 4, 16)
    assert geometry.dtype == "float16"


SLIDE, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ({"sliding_window": 8}, (8, 8, 8, 8)),  # Mistral
        ({"sliding_window": None}, ()),
        ({"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 2}, ()),  # Qwen2
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}, (None, None, 8, 8)),
        ({"sliding_window": 8, "max_window_layers": 2}, ()),
        ({"sliding_window": 8, "model_type": "gemma2"}, (8, None, 8, None)),
        ({"sliding_window": 8, "sliding_window_pattern": 3}, (8, 8, None, 8)),  # Gemma 3
        ({"sliding_window": 8, "model_type": "gemma3_text"}, (8, 8, 8, 8)),  # the sixth would be full
        ({"sliding_window": 8, "layer_types": [SLIDE, FULL, FULL, SLIDE]}, (8, None, None, 8)),
        ({"sliding_window": 8, "layer_types": [FULL] * 4}, ()),
    ],
)
def test_windows(more, windows):
    assert geometry_from_config(SMALL | more).windows == windows


# files


def test_a_file_and_its_directory_give_the_same(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    geometry = geometry_from_config(folder)
    assert geometry == geometry_from_config(str(folder / "config.json"))
    assert geometry.name == "my-model"


def test_a_directory_without_config(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*config.json: pass a config.json or a directory"):
        geometry_from_config(tmp_path)


@pytest.mark.parametrize("text", ["{", "\udcff", '{"num_hidden_layers": 4'])
def test_what_is_not_json(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"is not JSON: pass the config.json"):
        geometry_from_config(path)


def test_json_that_is_no_object(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[1, 2]")
    with pytest.raises(InputError, match="holds no JSON object"):
        geometry_from_config(path)


# refusals


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, r"\(deepseek_v3\) .*latent attention"),
        ({"model_type": "mamba", "state_size": 16}, "recurrent state"),
        ({"model_type": "rwkv"}, "recurrent state"),
        ({"model_type": "jamba", "mamba_d_state": 16}, "recurrent state"),
        ({"layer_types": ["linear_attention", FULL, FULL, FULL]}, "layers of type linear_attention"),
        ({"model_type": "bert"}, "an encoder keeps no cache"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"num_kv_shared_layers": 2}, "share the K and V of others"),
        ({"cross_attention_layers": [1]}, "attend to an image"),
        ({"attention_chunk_size": 8192}, "within chunks"),
        ({"head_dim": 16, "v_head_dim": 8}, "differ in size"),
    ],
)
def test_other_caches_are_refused_by_name(more, reason):
    with pytest.raises(InputError, match=reason) as error:
        geometry_from_config(SMALL | {"_name_or_path": "org/its-name"} | more)
    assert str(error.value).startswith("org/its-name")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", ["num_hidden_layers", "num_attention_heads", "hidden_size"])
def test_missing_numbers_are_named(missing):
    config = {key: value for key, value in SMALL.items() if key != missing}
    with pytest.raises(InputError, match=f"the config of the model lacks {missing}"):
        geometry_from_config(config)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers of the model is 0"),
        ({"num_attention_heads": -2}, "num_attention_heads of the model is -2"),
        ({"num_key_value_heads": [1, 2]}, r"num_key_value_heads of the model is \[1, 2\]"),
        ({"head_dim": "64"}, "head_dim of the model is '64'"),
        ({"hidden_size": 66}, "hidden_size of the model, 66, is no multiple of 4 heads"),
        ({"torch_dtype": "int4"}, "dtype of the model is 'int4'"),
        ({"sliding_window": 0}, "sliding_window of the model is 0"),
        (
            {"sliding_window": 8, "sliding_window_pattern": "LLG"},
            "sliding_window_pattern of the model is 'LLG'",
        ),
        ({"layer_types": 4}, "layer_types of the model are no list of names"),
        ({"layer_types": [SLIDE, {}]}, "layer_types of the model are no list of names"),
        ({"layer_types": [SLIDE] * 4}, "lacks sliding_window"),
        ({"sliding_window": 8, "layer_types": [SLIDE] * 3}, "4 layers and 3 windows"),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": -1}, "max_window_layers"),
    ],
)
def test_bad_numbers_are_named(more, message):
    with pytest.raises(InputError, match=message):
        geometry_from_config(SMALL | more)
