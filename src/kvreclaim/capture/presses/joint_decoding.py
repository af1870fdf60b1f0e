"""Whole blocks evicted while the model generates: any scorer, one decision for all layers and heads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from kvpress import BasePress
from kvpress.presses.base_press import is_prefilling
from numpy.typing import NDArray
from torch import Tensor

from kvreclaim.capture.inside.attention_layers import evictable
from kvreclaim.capture.presses.joint_press import JointPress, TokenJointPress, leave, stacked
from kvreclaim.compaction import packed_slots
from kvreclaim.errors import InputError
from kvreclaim.policies.joint import whole_budget
from kvreclaim.validate import positive_int

LATEST = 256
"""Hidden states that a scorer gets, of the latest steps."""


@dataclass
class JointDecodingPress(BasePress):
    """Cuts the cache to a target every so many steps, for all layers and heads of a table together.

    The rows of the cache stay in the order of their tokens, as scorers want them, while each has a slot of a
    block table: at first that of its token, then the one that a pack of the fewest moves leaves it in. Blocks
    are of slots; whom block-swap and blend keep in a kept block may come from anywhere. The last block stays,
    for tokens go on in it; the target pays for whole blocks before it. `TokenJoint` knows no slots: it goes
    by tokens. The prompt is not cut before the first steps are over, as kvpress's own DecodingPress does it.

    Parameters
    ----------
    press
        A `JointPress`, such as `BlockJointPress`, on the scorer.
    target_size
        KV pairs kept per layer and head at most: whole blocks.
    compression_interval
        Steps between evictions.
    """

    press: JointPress
    target_size: int = 1024
    compression_interval: int = 64
    _latest: dict[int, list[Tensor]] = field(default_factory=dict, init=False, repr=False)
    _scores: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    _slots: NDArray[np.int64] | None = field(default=None, init=False, repr=False)
    _steps: int = field(default=0, init=False, repr=False)
    _model: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        positive_int(self.compression_interval, "compression_interval")
        if positive_int(self.target_size, "target_size") % self.press.block_size:
            raise InputError(
                f"a target_size of {self.target_size} is no whole number of blocks of "
                f"{self.press.block_size}: pass a multiple"
            )
        if self.press.recent == 0:
            raise InputError(
                "while decoding the last block stays, for tokens go on in it: pass recent=1 or more"
            )

    def post_init_from_model(self, model: Any) -> None:
        """Keep the model, and hand it to the press."""
        self._model = model
        self.press.post_init_from_model(model)

    def reset(self) -> None:
        """Forget a generation."""
        self._slots = None
        self._begin()

    def _begin(self) -> None:
        """Count the steps to the next eviction anew."""
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
                self._evict(cache)
                self._begin()
        return output

    def _evict(self, cache: Any) -> None:
        """Cut all layers, and note in which slots a pack leaves the rows that stay."""
        if isinstance(self.press, TokenJointPress):
            self.press.cut(cache, self._scores, self.target_size)
            return
        scores = stacked(self._scores)
        slots, rows = self._slots_of(scores.shape), scores.shape[-1]
        by_slot = np.empty_like(scores)
        np.put_along_axis(by_slot, slots, scores, axis=-1)
        budget = whole_budget(self.target_size, rows, self.press.block_size)
        keep = self.press.select(by_slot, budget)
        flat, packed = keep.reshape(-1, rows), np.empty((keep.shape[0] * keep.shape[1], rows), np.int64)
        for table in self.press.tables(*keep.shape[:2]):
            packed[table] = packed_slots(flat[table], self.press.block_size)
        left = np.take_along_axis(packed.reshape(keep.shape), slots, axis=-1)
        self._slots = left[left >= 0].reshape(*keep.shape[:2], budget)
        leave(cache, sorted(self._scores), left >= 0)

    def _slots_of(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return each row's slot, ``[layers, kv_heads, rows]``; those since the last eviction follow."""
        before = np.empty((*shape[:2], 0), np.int64) if self._slots is None else self._slots
        since = np.arange(before.shape[-1], shape[-1])
        return np.concatenate([before, np.broadcast_to(since, (*shape[:2], len(since)))], axis=-1)
