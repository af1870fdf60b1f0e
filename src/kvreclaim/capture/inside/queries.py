"""The queries of an attention layer, as its attention function gets them: projected, normalised, rotated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvreclaim.errors import InputError

_seen = local()


@contextmanager
def observed_queries(model: Any) -> Iterator[None]:
    """Within the block, keep the latest queries of the model's attention for `latest_queries`.

    The attention function that the model is set to is wrapped for the time of the block, so that any family's
    way of making queries is seen as it is, and nothing is computed twice.

    Raises
    ------
    InputError
        If the model runs in eager attention, which each family brings itself.
    """
    name = model.config._attn_implementation
    if name not in ALL_ATTENTION_FUNCTIONS:
        raise InputError(
            f"the model runs in {name} attention: set it to sdpa, model.set_attn_implementation('sdpa')"
        )
    original = ALL_ATTENTION_FUNCTIONS[name]

    def observing(module: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        _seen.module, _seen.queries = module, query
        return original(module, query, *args, **kwargs)

    ALL_ATTENTION_FUNCTIONS[name] = observing
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS[name] = original
        _seen.__dict__.clear()


def latest_queries(module: Any) -> torch.Tensor:
    """Return the queries ``[heads, tokens, head_dim]`` of ``module``, the attention layer that ran last."""
    if getattr(_seen, "module", None) is not module:
        raise RuntimeError("latest_queries is for a hook of the layer that ran last, within observed_queries")
    queries: torch.Tensor = _seen.queries[0]
    return queries
