"""Rotary positions of an attention layer: its frequencies, and queries of its latest tokens rotated.

A scorer of a press gets hidden states: all of a prompt, or while decoding those of the latest steps, with the
rotation of the last step alone. So queries are rotated as the last token's is, and back by as many steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from kvpress.utils import get_prerope_query_states
from torch import Tensor, nn

from kvreclaim.capture.inside.attention_layers import model_name
from kvreclaim.errors import InputError


class LayerRotary(nn.Module):
    """The rotary embedding of a layer, of a model that has one for each type of layers.

    As presses call it, by ``x`` and ``position_ids``: they know of no types, which transformers 5 asks for.

    Parameters
    ----------
    rotary
        The model's.
    layer_type
        The layer's.
    """

    def __init__(self, rotary: nn.Module, layer_type: str) -> None:
        super().__init__()
        self.rotary, self.layer_type = rotary, layer_type
        self.inv_freq = getattr(rotary, f"{layer_type}_inv_freq")

    def forward(self, x: Tensor, position_ids: Tensor) -> Any:
        """Return the cosines and sines of some positions."""
        return self.rotary(x, position_ids, self.layer_type)


def bind_rotary(module: Any, rotary: Any) -> None:
    """Give an attention layer its rotary embedding, where presses look for it."""
    kind = getattr(module, "layer_type", None)
    typed = isinstance(kind, str) and hasattr(rotary, f"{kind}_inv_freq")
    module.rotary_emb = LayerRotary(rotary, str(kind)) if typed else rotary


def frequencies_of(module: Any) -> Tensor:
    """Return the radians a token that each pair of dimensions is rotated by, ``[head_dim / 2]``.

    Raises
    ------
    InputError
        If the layer rotates only a part of its dimensions, or in another way.
    """
    found: Any = getattr(module.rotary_emb, "inv_freq", None)
    if found is None or 2 * len(found) != module.head_dim:
        raise InputError(
            f"{model_name(module)} does not rotate all dimensions of its heads: pass a press that scores "
            "without rotating, such as snapkv"
        )
    rates: Tensor = found.float()
    return rates


def rotated_queries(module: Any, hidden_states: Tensor, count: int, kwargs: Mapping[str, Any]) -> Tensor:
    """Return the queries of the last ``count`` tokens as attention uses them, ``[heads, count, head_dim]``.

    Parameters
    ----------
    module
        The attention layer, with its ``rotary_emb``.
    hidden_states
        ``[1, n, hidden]``, of the latest n tokens, at least ``count``.
    count
        How many.
    kwargs
        What the layer was called with; ``position_embeddings`` are of its last tokens.
    """
    queries = get_prerope_query_states(module, hidden_states[:, -count:])[0]
    back = torch.arange(1 - count, 1, device=queries.device)[:, None] * frequencies_of(module)
    turn_cos, turn_sin = (torch.cat([part, part], dim=-1) for part in (back.cos(), back.sin()))
    last_cos, last_sin = (part[0, -1].float() for part in kwargs["position_embeddings"])
    cos, sin = last_cos * turn_cos - last_sin * turn_sin, last_sin * turn_cos + last_cos * turn_sin
    first, second = queries.float().chunk(2, dim=-1)
    rotated: Tensor = (queries.float() * cos + torch.cat([-second, first], dim=-1) * sin).to(queries.dtype)
    return rotated


def next_position(kwargs: Mapping[str, Any]) -> int:
    """Return the position of the token after those that a layer was called with."""
    positions = kwargs.get("position_ids")
    positions = kwargs["cache_position"] if positions is None else positions
    return int(positions.reshape(-1)[-1]) + 1
