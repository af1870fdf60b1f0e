"""Where a model's queries lie before rotation: read off a text once per model, for TriAttention's scores."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from kvpress.utils import get_prerope_query_states
from torch import Tensor
from transformers import AutoTokenizer

from kvreclaim.capture.inside.attention_layers import (
    attention_layers,
    context_length,
    decoder_of,
    model_name,
)
from kvreclaim.capture.inside.checks import check_prompt
from kvreclaim.capture.inside.quiet import quiet_transformers
from kvreclaim.capture.inside.rotary import bind_rotary, frequencies_of
from kvreclaim.errors import InputError
from kvreclaim.scores.centres_file import CentresFile
from kvreclaim.scores.distance import QueryCentres, centres_of
from kvreclaim.texts import docstrings

TOKENS = 2048
"""Tokens that a model is calibrated on by itself."""

MODULES = ("decimal", "statistics", "typing", "zipfile")
"""Modules of Python whose docstrings they are; texts to measure on are of others."""

_calibrated: WeakKeyDictionary[Any, tuple[QueryCentres, ...]] = WeakKeyDictionary()


def calibrate(model: Any, input_ids: Tensor) -> tuple[QueryCentres, ...]:
    """Read a model's query centres off a text, and keep them for as long as the model lives.

    Parameters
    ----------
    model
        A causal language model of transformers.
    input_ids
        The text, ``[1, tokens]``; the authors of TriAttention take any, of a few thousand tokens.

    Raises
    ------
    InputError
        If the model can't read the text.
    """
    check_prompt(model, input_ids)
    centres: dict[int, QueryCentres] = {}

    def note(module: Any, _: Any, kwargs: dict[str, Any]) -> None:
        queries = get_prerope_query_states(module, kwargs["hidden_states"])[0]
        centres[module.layer_idx] = centres_of(queries)

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in attention_layers(model)]
    try:
        with torch.no_grad():
            decoder_of(model)(input_ids=input_ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    _calibrated[model] = tuple(centres[layer] for layer in sorted(centres))
    return _calibrated[model]


def query_centres(model: Any) -> tuple[QueryCentres, ...]:
    """Return a model's query centres, a layer each; calibrated on Python's docstrings where not yet.

    Raises
    ------
    InputError
        If the model was not calibrated and has no tokenizer to do it with.
    """
    if model not in _calibrated:
        calibrate(model, _own_text(model))
    return _calibrated[model]


def centres_file(model: Any) -> CentresFile:
    """Return a model's query centres to be written to a file, for a runtime that has no hidden states.

    Raises
    ------
    InputError
        As `query_centres`; or if the model rotates only a part of its heads' dimensions.
    """
    centres, first = query_centres(model), attention_layers(model)[0]
    bind_rotary(first, decoder_of(model).rotary_emb)
    return CentresFile(
        centre=torch.stack([layer.centre for layer in centres]).cpu().numpy(),
        spread=torch.stack([layer.spread for layer in centres]).cpu().numpy(),
        frequencies=frequencies_of(first).cpu().numpy(),
    )


def _own_text(model: Any) -> Tensor:
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(model.config._name_or_path)
            ids: Tensor = tokenizer(docstrings(MODULES), return_tensors="pt").input_ids
    except (OSError, ValueError) as error:
        raise InputError(
            f"{model_name(model)} has no tokenizer: call calibrate(model, input_ids) with a text"
        ) from error
    return ids[:, : min(TOKENS, context_length(model) or TOKENS)].to(model.device)
