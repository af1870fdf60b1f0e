"""Where a model keeps its attention layers, and which of them a press may evict from."""

from __future__ import annotations

from typing import Any

from torch import nn

from kvreclaim.errors import InputError
from kvreclaim.layout import KVGeometry, geometry_from_config


def decoder_of(model: Any) -> Any:
    """Return the stack of decoder layers of a causal language model.

    Raises
    ------
    InputError
        If the model does not have one where kvpress looks for it.
    """
    inner = getattr(model, "model", None)
    decoder = getattr(inner, "language_model", inner)
    if not hasattr(decoder, "layers"):
        raise InputError(
            f"{model_name(model)} ({model.config.model_type}) has no model.layers: kvpress can't reach its "
            "attention; pass a model of a newer family, such as Llama, Qwen, Mistral, Phi or Gemma"
        )
    return decoder


def attention_layers(model: Any) -> list[nn.Module]:
    """Return the attention module of each layer, in order.

    Raises
    ------
    InputError
        If a layer has none: it caches no K and V.
    """
    modules: list[Any] = [getattr(layer, "self_attn", None) for layer in decoder_of(model).layers]
    without = [index for index, module in enumerate(modules) if not hasattr(module, "layer_idx")]
    if without:
        raise InputError(
            f"{model_name(model)} ({model.config.model_type}): layer {without[0]} caches no K and V "
            "of its own; pass another model"
        )
    return modules


def evictable(model: Any, tokens: int) -> tuple[bool, ...]:
    """Say of each layer whether a press evicts from it.

    In a model that mixes full with sliding-window attention only the full layers are evicted from, as
    kvpress does for Gemma 3: a window drops its old tokens by itself. Where every layer slides, all are, as
    long as the prompt fits the window.

    Raises
    ------
    InputError
        If every layer slides and the prompt exceeds the window.
    """
    windows = geometry_of(model.config).windows
    layers = len(attention_layers(model))
    if not windows:
        return (True,) * layers
    if None in windows:
        return tuple(window is None for window in windows)
    smallest = min(window for window in windows if window is not None)
    if tokens > smallest:
        raise InputError(
            f"every layer of {model_name(model)} slides over {smallest} tokens: pass a shorter prompt"
        )
    return (True,) * layers


def geometry_of(config: Any) -> KVGeometry:
    """Return the KV geometry that a transformers config describes.

    Raises
    ------
    InputError
        If the model's cache is not one K and one V per head, with the model's name and the reason.
    """
    return geometry_from_config({**config.to_dict(), "_name_or_path": config_name(config)})


def model_name(model: Any) -> str:
    """Return the last part of a model's name or path."""
    return config_name(model.config)


def config_name(config: Any) -> str:
    """Return the last part of the name or path that a config was read from, else the family's name."""
    name = str(config.name_or_path or config.model_type)
    return name.rstrip("/").rpartition("/")[2]


def context_length(model: Any) -> int | None:
    """Return the most tokens that the model's positions reach, None if its config does not say.

    Raises
    ------
    InputError
        If the config says something that is no number.
    """
    length = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if not isinstance(length, int | float | None):
        raise InputError(
            f"{model_name(model)}: max_position_embeddings is {length!r}; pass a config.json with a number"
        )
    return int(length) if length else None
