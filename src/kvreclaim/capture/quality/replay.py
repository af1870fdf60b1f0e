"""Replay: what a model says when only the KV pairs of a keep mask are left to it.

    cached (prompt)      new tokens
    K K K K K K K K K  | N N N N        one head of one layer: the columns of its attention mask
    x x . x . . x x x  | x . . .        x may be attended to: kept, and not later than the query
    x x . x . . x x x  | x x . .

The cache stays full and the dropped pairs are masked out, head by head. So positions stay those of the
prompt, every head may keep another number of pairs, and no mask has to fit a compressed tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvreclaim.capture.inside.attention_layers import decoder_of, model_name
from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask

ATTENTION = "kvreclaim_replay"
"""The name that the replay's attention is registered under in transformers."""

Step = Callable[..., Tensor]
"""Takes token ids and returns logits; see `replaying`."""


@dataclass(frozen=True)
class _Replay:
    """What the attention must know: keep ``[layers, kv_heads, tokens]``, and which layers ran."""

    cache: Any
    keep: Tensor
    eager: bool
    ran: set[int] = field(default_factory=set)


_ACTIVE: ContextVar[_Replay] = ContextVar("replay")


@contextmanager
def replaying(model: Any, cache: Any, mask: KeepMask | None) -> Iterator[Step]:
    """Let a model go on from its prompt, of which a keep mask is left.

    Gives a function ``step(ids, last=0)`` that feeds token ids ``[n]`` and returns the logits
    ``[n, vocabulary]``, or with ``last`` those of the last so many tokens. Each step goes on where the one
    before ended. Afterwards cache and model are as they were.

    Parameters
    ----------
    model
        A decoder-only model of transformers.
    cache
        Its full, unevicted cache after the prompt: a ``DynamicCache`` of one sequence, which sliding-window
        layers may hold whole or only as far as their window reaches.
    mask
        Which pairs are left; None for all of them.

    Raises
    ------
    InputError
        If the cache is of another kind or the mask of another shape; from ``step``, if the model's attention
        can't be replaced.
    """
    keep = _keep_tensor(mask, cache)
    config = decoder_of(model).config
    before = config._attn_implementation
    saved = [dict(vars(layer)) for layer in cache.layers]
    # Registered anew each time: kvpress wraps all the functions that it finds registered when it is imported.
    ALL_ATTENTION_FUNCTIONS[ATTENTION] = _masked_attention
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, _explicit_mask)
    active = _ACTIVE.set(_Replay(cache, keep.to(model.device), eager=before == "eager"))
    try:
        config._attn_implementation = ATTENTION
        yield lambda ids, last=0: _step(model, ids, last)
    finally:
        _ACTIVE.reset(active)
        config._attn_implementation = before
        for layer, state in zip(cache.layers, saved, strict=True):
            vars(layer).clear()
            vars(layer).update(state)


def replay_logits(model: Any, cache: Any, mask: KeepMask | None, next_ids: Tensor) -> Tensor:
    """Return the logits ``[n, vocabulary]`` of the tokens that follow a prompt of which a mask is left.

    Parameters and errors are those of `replaying`; ``next_ids`` is ``[n]``.
    """
    with replaying(model, cache, mask) as step:
        return step(next_ids)


def generate(
    model: Any, cache: Any, mask: KeepMask | None, ids: Tensor, limit: int, stop_ids: Sequence[int] = ()
) -> list[int]:
    """Return the tokens that greedy decoding gives after a prompt of which a mask is left.

    Parameters
    ----------
    model, cache, mask
        As for `replaying`.
    ids
        Token ids to feed first, ``[n]``.
    limit
        The most tokens to generate.
    stop_ids
        Tokens that end the text; the end itself is left out.

    Raises
    ------
    InputError
        As `replaying`.
    """
    text: list[int] = []
    with replaying(model, cache, mask) as step:
        while len(text) < limit:
            ids = step(ids, last=1).argmax(-1)
            if ids.item() in stop_ids:
                break
            text.append(int(ids.item()))
    return text


def agreed(model: Any, cache: Any, mask: KeepMask | None, ids: Tensor, draft: Tensor) -> list[int]:
    """Return what greedy decoding gives as far as it follows a draft, and the one token after that.

    It takes one pass, where decoding takes one a token; the tokens are the same, up to rounding (Leviathan
    et al., 2023, arXiv 2211.17192, section 2.1, of a draft that costs nothing).

    Parameters
    ----------
    model, cache, mask
        As for `replaying`.
    ids, draft
        Token ids to feed, ``[n]``, and those that may follow, ``[m]``.

    Returns
    -------
    list of int
        At most ``m + 1`` tokens; any but the last are the draft's.

    Raises
    ------
    InputError
        As `replaying`.
    """
    with replaying(model, cache, mask) as step:
        said = step(torch.cat([ids, draft]), last=len(draft) + 1).argmax(-1).tolist()
    pairs = enumerate(zip(said, draft.tolist(), strict=False))
    parting = next((place for place, (token, drafted) in pairs if token != drafted), len(draft))
    return [int(token) for token in said[: parting + 1]]


def _step(model: Any, ids: Tensor, last: int) -> Tensor:
    active = _ACTIVE.get()
    active.ran.clear()
    fed = ids.reshape(1, -1).to(model.device)
    with torch.no_grad():
        output = model(input_ids=fed, past_key_values=active.cache, use_cache=True, logits_to_keep=last)
    if active.ran != set(range(len(active.cache.layers))):
        raise InputError(
            f"{model_name(model)} does not take its attention from transformers' AttentionInterface: "
            "nothing can be masked in it; pass a model that transformers itself defines"
        )
    logits: Tensor = output.logits[0]
    return logits


def _masked_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Attend as the model does, to what its own mask allows and the keep mask has left.

    Query ``[1, heads, new, head_dim]``, key and value ``[1, kv_heads, columns, head_dim]``, attention_mask
    bool ``[1, 1, new, columns]``.
    """
    active, index = _ACTIVE.get(), module.layer_idx
    active.ran.add(index)
    _, kv_heads, columns, _ = key.shape
    # The columns end at the newest token; those of a sliding layer need not begin at the first of the prompt.
    first = active.cache.layers[index].get_seq_length() - columns
    kept = active.keep[index, :, first:].to(query.device).repeat_interleave(query.shape[1] // kv_heads, dim=0)
    dropped = query.new_zeros(len(kept), 1, columns)
    dropped[..., : kept.shape[-1]].masked_fill_(~kept[:, None], -torch.inf)
    # A sum of small terms, since a bool mask of every head would first be made a float one, in many passes.
    bias = query.new_zeros(attention_mask.shape).masked_fill_(~attention_mask, -torch.inf) + dropped
    attend = _own_eager(module) if active.eager else sdpa_attention_forward
    output: tuple[Tensor, Tensor | None] = attend(module, query, key, value, bias, **kwargs)
    return output


def _own_eager(module: Any) -> Callable[..., Any]:
    """Return the eager attention of the model's family, which may cap its logits."""
    attend: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
    return attend


def _explicit_mask(**kwargs: Any) -> Tensor:
    """Return the model's mask as a tensor, also where a causal flag would do."""
    mask: Tensor = sdpa_mask(**{**kwargs, "allow_is_causal_skip": False})  # type: ignore[assignment]  # None if skipped
    return mask


def _keep_tensor(mask: KeepMask | None, cache: Any) -> Tensor:
    """Return the keep mask as bool ``[layers, kv_heads, tokens]``; InputError if it does not fit."""
    layers = getattr(cache, "layers", [])
    if not layers or not all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
        raise InputError(f"a replay needs the DynamicCache of a prefilled prompt, got {type(cache).__name__}")
    sequences, kv_heads = layers[0].keys.shape[:2]
    if sequences != 1:
        raise InputError(f"a replay needs the cache of one sequence, got {sequences}: prefill one at a time")
    shape = (len(layers), kv_heads, cache.get_seq_length())
    if mask is None:
        return torch.ones(shape, dtype=torch.bool)
    if mask.array.shape != shape:
        raise InputError(
            f"keep mask {mask.name!r} has shape {mask.array.shape}, the cache {shape} [layers, kv_heads, "
            "tokens]: pass the full cache of the prompt that the mask was made on"
        )
    return torch.from_numpy(mask.array.copy())  # a copy, for torch warns of arrays that are read-only
