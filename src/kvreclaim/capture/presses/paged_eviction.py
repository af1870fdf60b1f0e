"""PagedEviction as presses: whole blocks by ‖V‖ / ‖K‖, from a prompt or while decoding.

Chitty-Venkata et al., arXiv 2509.04377.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from kvpress import BasePress
from kvpress.presses.base_press import is_prefilling
from torch import Tensor

from kvreclaim.capture.inside.attention_layers import evictable
from kvreclaim.capture.presses.joint_press import TwoPassPress, rows_at
from kvreclaim.errors import InputError
from kvreclaim.layout import BlockLayout
from kvreclaim.policies import PagedEviction
from kvreclaim.scores.attention import value_key_ratio
from kvreclaim.validate import check_block_size, positive_int


@dataclass
class PagedEvictionPress(TwoPassPress):
    """Evicts whole blocks of a prompt by their mean ‖V‖ / ‖K‖: `policies.PagedEviction`.

    Parameters
    ----------
    compression_ratio
        Fraction of KV pairs to evict.
    block_size, block_tables
        The runtime's layout.
    """

    compression_ratio: float = 0.0
    block_size: int = 16
    block_tables: str = "shared"

    def __post_init__(self) -> None:
        self._layout = BlockLayout(self.block_size, self.block_tables)

    def _layer_scores(self, module: Any, cache: Any, _: dict[str, Any], __: Any) -> Tensor:
        layer = cache.layers[module.layer_idx]
        return value_key_ratio(layer.keys[0], layer.values[0]).cpu()

    def _select(self, scores: Any, budget: int) -> Any:
        return PagedEviction().select(scores, budget, self._layout).array


@dataclass
class PagedEvictionDecodingPress(BasePress):
    """PagedEviction over a generation, in a block table that all layers and heads share.

    The prompt is cut to the target token by token, each head its own, and packed; from there on, whenever a
    new block is full, the older block with the lowest mean score over all layers and heads leaves.

    Parameters
    ----------
    target_size
        KV pairs kept per layer and head: whole blocks.
    block_size
        Tokens of a block.
    """

    target_size: int = 1024
    block_size: int = 16
    _model: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if positive_int(self.target_size, "target_size") % check_block_size(self.block_size):
            raise InputError(
                f"a target_size of {self.target_size} is no whole number of blocks of {self.block_size}: "
                "pass a multiple"
            )

    def post_init_from_model(self, model: Any) -> None:
        """Keep the model, whose layers tell which are evicted from."""
        self._model = model

    def forward_hook(self, module: Any, _: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """Evict once the last layer has written its rows."""
        new, cache = kwargs["hidden_states"].shape[1], kwargs["past_key_values"]
        pressed = [layer for layer, evicts in enumerate(evictable(self._model, new)) if evicts]
        if module.layer_idx == pressed[-1]:
            layers = [cache.layers[layer] for layer in pressed]
            rows = layers[0].keys.shape[2]
            if is_prefilling(kwargs["cache_position"], new) and rows > self.target_size:
                self._cut(layers)
            elif rows >= self.target_size + self.block_size:
                self._evict_block(layers)
        return output

    def _cut(self, layers: list[Any]) -> None:
        """Keep the best tokens of each head."""
        for layer in layers:
            scores = value_key_ratio(layer.keys[0], layer.values[0])
            kept = scores.topk(self.target_size, dim=-1).indices.sort(dim=-1).values
            layer.keys, layer.values = rows_at(layer.keys, kept), rows_at(layer.values, kept)

    def _evict_block(self, layers: list[Any]) -> None:
        """Evict the lowest of the blocks before the newest."""
        scores = torch.stack([value_key_ratio(layer.keys[0], layer.values[0]).mean(0) for layer in layers])
        means = scores[:, : self.target_size].mean(0).view(-1, self.block_size).mean(-1)
        start = int(means.argmin()) * self.block_size
        for layer in layers:
            rows, heads = layer.keys.shape[2], layer.keys.shape[1]
            places = torch.arange(rows, device=layer.keys.device)
            kept = places[(places < start) | (places >= start + self.block_size)].expand(heads, -1)
            layer.keys, layer.values = rows_at(layer.keys, kept), rows_at(layer.values, kept)
