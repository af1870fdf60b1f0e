"""Whole blocks evicted while the model generates: any scorer, one decision for all layers and heads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from kvpress import BasePress
from kvpress.presses.base_press import is_prefilling
from torch import Tensor

from kvreclaim.capture.inside.attention_layers import evictable
from kvreclaim.capture.presses.joint_press import BlockJointPress, JointPress, TokenJointPress
from kvreclaim.errors import InputError
from kvreclaim.validate import positive_int

LATEST = 256
"""Hidden states that a scorer gets, of the latest steps."""


@dataclass
class JointDecodingPress(BasePress):
    """Cuts the cache to a target every so many steps, the same way in all layers and heads of a table.

    The rows of a cache stand for the slots of a block table: with whole blocks evicted down to whole blocks,
    the others keep their places in theirs. The prompt is not cut before the first steps are over, as
    kvpress's own DecodingPress does it.

    Parameters
    ----------
    press
        A `BlockJointPress` or `TokenJointPress` on the scorer.
    target_size
        KV pairs kept per layer and head: whole blocks.
    compression_interval
        Steps between evictions.
    """

    press: JointPress
    target_size: int = 1024
    compression_interval: int = 64
    _latest: dict[int, list[Tensor]] = field(default_factory=dict, init=False, repr=False)
    _scores: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    _steps: int = field(default=0, init=False, repr=False)
    _model: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        positive_int(self.compression_interval, "compression_interval")
        if not isinstance(self.press, BlockJointPress | TokenJointPress):
            raise InputError(
                f"{self.press.kind.name} moves pairs between blocks, which a cache of rows does not show: "
                "pass block-joint or token-joint"
            )
        if positive_int(self.target_size, "target_size") % self.press.block_size:
            raise InputError(
                f"a target_size of {self.target_size} is no whole number of blocks of "
                f"{self.press.block_size}: pass a multiple"
            )

    def post_init_from_model(self, model: Any) -> None:
        """Keep the model, and hand it to the press."""
        self._model = model
        self.press.post_init_from_model(model)

    def reset(self) -> None:
        """Forget the steps of a generation."""
        self._latest, self._scores, self._steps = {}, {}, 0

    def forward_hook(self, module: Any, _: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """Note the step's hidden states; score the layer and evict where it is time."""
        hidden, cache, index = kwargs["hidden_states"], kwargs["past_key_values"], module.layer_idx
        if is_prefilling(kwargs["cache_position"], hidden.shape[1]):
            self.reset()
            return output
        pressed = [layer for layer, evicts in enumerate(evictable(self._model, 1)) if evicts]
        self._steps += index == pressed[0]
        latest = self._latest.setdefault(index, [])
        latest.append(hidden.detach())
        del latest[:-LATEST]
        rows = cache.layers[index].keys.shape[2]
        if self._steps >= self.compression_interval and rows > self.target_size:
            seen = {**kwargs, "hidden_states": torch.cat(latest, dim=1)}
            self._scores[index] = self.press.scores_of(module, cache, seen, output)
            if index == pressed[-1]:
                self.press.cut(cache, self._scores, self.target_size)
                self.reset()
        return output
