"""Checks of what `capture` and its kin are given."""

from __future__ import annotations

import math
from typing import Any

import torch

from kvreclaim.capture.inside.attention_layers import context_length, model_name
from kvreclaim.errors import InputError


def asked_ratio(press: Any) -> float | None:
    """Return the compression ratio that a press is set to, None if it has none before it runs."""
    try:
        ratio = press.compression_ratio
    except (AttributeError, AssertionError, ValueError):
        return None
    return None if ratio is None else float(ratio)


def check_keeps_something(ratio: float | None, tokens: int, name: str) -> None:
    """Raise InputError if a ratio is none, or leaves not one token of a prompt."""
    if ratio is not None and not (0 <= ratio < 1 and int(tokens * (1 - ratio)) >= 1):
        most = math.floor(10_000 * (1 - 1 / tokens)) / 10_000 if tokens else 0
        raise InputError(
            f"{name}: ratio {ratio} keeps nothing of {tokens} tokens; pass one from 0 to {most:g}"
        )


def check_prompt(model: Any, input_ids: torch.Tensor, later_tokens: int = 0) -> None:
    """Raise InputError if the input is no prompt that the model can read, and ``later_tokens`` after it."""
    if input_ids.ndim != 2 or input_ids.shape[0] != 1 or input_ids.shape[1] < 1:
        raise InputError(f"input_ids have shape {tuple(input_ids.shape)}: pass one prompt, [1, tokens]")
    check_length(model, input_ids.shape[1] + later_tokens)


def check_length(model: Any, wanted: int) -> None:
    """Raise InputError if the model can't read so many tokens."""
    limit = context_length(model)
    if limit is not None and wanted > limit:
        raise InputError(f"{wanted} tokens, and {model_name(model)} takes {limit}: pass a shorter prompt")
