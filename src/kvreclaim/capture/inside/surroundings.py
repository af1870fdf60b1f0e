"""What presses run in: the attention they need, random numbers of their own, errors with their name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kvreclaim.errors import InputError

# What presses raise for a prompt, a model or parameters that they can't take.
_PRESS_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


@contextmanager
def attention_set_to(model: Any, implementation: str) -> Iterator[None]:
    """Run the model in ``eager`` attention; or (``sdpa``) in any other, its own unless eager."""
    before = model.config._attn_implementation
    if implementation == before or (implementation == "sdpa" and before != "eager"):
        yield
        return
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Turn what a press raises into one line with its name."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except torch.OutOfMemoryError:
        raise
    except _PRESS_ERRORS as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"{name}: fails on this model or prompt ({reason}); pass other parameters, or another press"
        ) from error


@contextmanager
def seeded(seed: int, layer: int, device: torch.device) -> Iterator[None]:
    """Draw the same random numbers whatever was drawn before, others in each layer; leave no trace."""
    number = seed * 1_000_003 + layer
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(number)  # torch.manual_seed queues a call for every device, too
        if devices:
            torch.cuda.manual_seed(number)
        yield
