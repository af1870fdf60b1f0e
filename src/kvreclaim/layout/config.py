"""KVGeometry from the config.json that Hugging Face models come with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.layout.geometry import KVGeometry, sliding_windows
from kvreclaim.validate import non_negative_int, positive_int

# Names that model families give to the same number, the most common first.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num")
HIDDEN_SIZE = ("hidden_size", "n_embd", "d_model")
HEAD_DIM = ("head_dim", "kv_channels")
WINDOW = ("sliding_window",)
PATTERN = ("sliding_window_pattern", "_sliding_window_pattern")

# Parts of a config that describe the language model, or its attention, inside a larger one.
NESTED = ("text_config", "llm_config", "attn_config")

# Keys and model types that give away a cache other than one K and one V per head, and what it is instead.
_STATE = "it keeps a recurrent state"
OTHER_CACHES = {
    "kv_lora_rank": "multi-head latent attention caches one latent vector per token",
    "compress_ratios": "it caches compressed keys",
    "num_kv_shared_layers": "some layers share the K and V of others",
    "global_head_dim": "layers differ in head size",
    "block_configs": "layers differ in their heads",
    "cross_attention_layers": "some layers attend to an image",
    "attention_chunk_size": "some layers attend within chunks",
    "is_encoder_decoder": "an encoder-decoder model also caches the encoder's output",
    "mamba_d_state": _STATE,
    "ssm_state_size": _STATE,
    "state_size": _STATE,
    "ssm_cfg": _STATE,
    "linear_attn_config": _STATE,
    "linear_num_key_heads": _STATE,
}
RECURRENT = ("lfm2", "minimax", "minimax_text_01", "recurrent_gemma", "rwkv", "rwkv5", "rwkv6", "xlstm")
ENCODERS = ("albert", "bert", "deberta", "deberta-v2", "distilbert", "modernbert", "roberta", "xlm-roberta")
OTHER_MODELS = dict.fromkeys(RECURRENT, _STATE) | dict.fromkeys(ENCODERS, "an encoder keeps no cache")
PLAIN_LAYERS = frozenset({"full_attention", "sliding_attention"})

# Of so many layers the last sees everything, in families whose older configs leave it unsaid.
FULL_LAYER_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}


def geometry_from_config(config: Mapping[str, Any] | str | PathLike[str]) -> KVGeometry:
    """Return the KV geometry that a Hugging Face config describes.

    A config without a number of KV heads has as many as query heads; without a head size,
    ``hidden_size / num_attention_heads``; without a dtype, bfloat16.

    Parameters
    ----------
    config
        The config as a mapping, or the path of a config.json or of the directory that holds one.

    Raises
    ------
    InputError
        If the config cannot be read, lacks a number or has one that is not positive, or if the model's cache
        is not one K and one V per head (latent attention, recurrent state, encoders).
    """
    content, name = ({**config}, "") if isinstance(config, Mapping) else _read(Path(config))
    flat = _flatten(content)
    name = str(flat.get("_name_or_path") or name or flat.get("model_type") or "the model")
    _refuse_other_caches(flat, name)
    layers = _number(flat, LAYERS, name)
    heads = _number(flat, HEADS, name)
    return KVGeometry(
        name=name,
        layers=layers,
        kv_heads=_kv_heads(flat, heads, name),
        head_dim=_head_dim(flat, heads, name),
        dtype=str(flat.get("torch_dtype") or flat.get("dtype") or "bfloat16").removeprefix("torch."),
        windows=_windows(flat, layers, name),
    )


def _read(path: Path) -> tuple[dict[str, Any], str]:
    """Return the content of a config file and the name of the directory it lies in."""
    if path.is_dir():
        path = path / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise InputError(f"cannot read {path}: pass a config.json or a directory that holds one") from None
    except (ValueError, RecursionError):  # the latter where it is nested too deep to be one
        raise InputError(f"{path} is not JSON: pass the config.json of a Hugging Face model") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object: pass the config.json of a Hugging Face model")
    return content, path.resolve().parent.name


def _flatten(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with the parts that describe the language model laid over it."""
    flat = dict(config)
    for key in NESTED:
        nested = flat.get(key)
        if isinstance(nested, Mapping):
            flat |= {inner: value for inner, value in nested.items() if value is not None}
    return flat


def _refuse_other_caches(config: dict[str, Any], name: str) -> None:
    """Raise InputError if the cache of this model is not one K and one V per head and layer."""
    model_type = str(config.get("model_type", ""))
    reasons = [reason for key, reason in OTHER_CACHES.items() if config.get(key)]
    if model_type in OTHER_MODELS:
        reasons.append(OTHER_MODELS[model_type])
    if config.get("v_head_dim") not in (None, config.get("head_dim")):
        reasons.append("K and V differ in size")
    if kinds := set(_layer_types(config, name)) - PLAIN_LAYERS:
        reasons.append(f"it has layers of type {', '.join(sorted(kinds))}")
    if reasons:
        what = name if model_type in ("", name) else f"{name} ({model_type})"
        raise InputError(f"{what} does not cache one K and one V per head: {reasons[0]}; pass another model")


def _layer_types(config: dict[str, Any], name: str) -> list[str]:
    """Return the kind of attention of each layer, [] if the config does not list them."""
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list | tuple) or not all(isinstance(kind, str) for kind in kinds):
        raise InputError(f"layer_types of {name} are no list of names: pass one name for each layer")
    return list(kinds)


def _number(config: dict[str, Any], keys: tuple[str, ...], name: str) -> int:
    """Return the positive integer under the first of the keys that is set; InputError if none is."""
    number = _optional_number(config, keys, name)
    if number is None:
        raise InputError(f"the config of {name} lacks {keys[0]}: pass a complete config.json")
    return number


def _optional_number(config: dict[str, Any], keys: tuple[str, ...], name: str) -> int | None:
    """Return the positive integer under the first of the keys that is set, None if none is."""
    key = next((key for key in keys if config.get(key) is not None), None)
    return None if key is None else positive_int(config[key], f"{key} of {name}")


def _kv_heads(config: dict[str, Any], heads: int, name: str) -> int:
    # Falcon's newer models keep the flag of the older ones, and do not obey it.
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    return _optional_number(config, KV_HEADS, name) or heads


def _head_dim(config: dict[str, Any], heads: int, name: str) -> int:
    head_dim = _optional_number(config, HEAD_DIM, name)
    if head_dim is not None:
        return head_dim
    hidden = _number(config, HIDDEN_SIZE, name)
    if hidden % heads:
        raise InputError(f"hidden_size of {name}, {hidden}, is no multiple of {heads} heads: pass head_dim")
    return hidden // heads


def _windows(config: dict[str, Any], layers: int, name: str) -> tuple[int | None, ...]:
    """Return the window of each layer, by whichever way of saying it the config uses; () if there is none."""
    if kinds := _layer_types(config, name):
        if "sliding_attention" not in kinds:
            return ()
        window = _number(config, WINDOW, name)
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    # Configs of Qwen name a window whether it is used or not; left unsaid, it is not.
    used = config.get("use_sliding_window", "max_window_layers" not in config)
    sliding = _optional_number(config, WINDOW, name) if used else None
    if sliding is None:
        return ()
    first = non_negative_int(config.get("max_window_layers", 0), f"max_window_layers of {name}")
    every = _optional_number(config, PATTERN, name) or FULL_LAYER_EVERY.get(str(config.get("model_type")))
    windows = sliding_windows(layers, sliding, every)
    return tuple(None if layer < first else window for layer, window in enumerate(windows))
