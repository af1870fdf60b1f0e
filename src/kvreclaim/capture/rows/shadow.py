"""A cache for one press among many: it holds the model's own rows until the press drops some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kvreclaim.capture.record import living_rows
from kvreclaim.capture.rows.match import Rows, match, rows_of
from kvreclaim.errors import InputError


@dataclass
class ShadowLayer:
    """Keys and values of one layer, as presses of kvpress read and replace them."""

    keys: Tensor
    values: Tensor


class Prompt:
    """The rows that the model wrote for a prompt, hashed once for all presses, layer by layer."""

    def __init__(self) -> None:
        self.layers: dict[int, ShadowLayer] = {}
        self.rows: dict[int, Rows] = {}
        self._writes: dict[int, tuple[int, int]] = {}

    def add(self, index: int, keys: Tensor, values: Tensor) -> None:
        """Add a layer's rows."""
        self.layers[index], self.rows[index] = ShadowLayer(keys, values), rows_of(keys, values)
        self._writes[index] = (keys._version, values._version)

    def check_untouched(self, index: int) -> None:
        """Raise InputError if a layer's rows were written to since they were added."""
        layer = self.layers[index]
        if (layer.keys._version, layer.values._version) != self._writes[index]:
            raise InputError("it writes to the rows in place: a keep mask can't say that; pass another press")


class Shadow:
    """What one press sees as the cache, and the keep mask that comes of it.

    Parameters
    ----------
    prompt
        The model's own rows; a layer is in ``layers`` once it is there.
    """

    def __init__(self, prompt: Prompt) -> None:
        self.layers: dict[int, ShadowLayer] = {}
        self._keep: dict[int, Tensor] = {}
        self._prompt = prompt

    def open(self, module: Any) -> None:
        """Show the press the layer that the model just wrote."""
        written = self._prompt.layers[module.layer_idx]
        self.layers[module.layer_idx] = ShadowLayer(written.keys, written.values)
        module.masked_key_indices = None

    def settle(self, module: Any) -> None:
        """Take down what the press did, in this layer or in earlier ones, and let go of its tensors.

        Raises
        ------
        InputError
            If it wrote to the model's own rows, or left rows that are none of them.
        """
        self._prompt.check_untouched(module.layer_idx)
        for index in list(self.layers):
            written, left = self._prompt.layers[index], self.layers[index]
            marked = module.masked_key_indices if index == module.layer_idx else None
            if marked is None and left.keys is written.keys and left.values is written.values:
                continue
            rows = self._prompt.rows[index] if left.keys is written.keys else rows_of(left.keys, left.values)
            try:
                alive = None if marked is None else living_rows(module, rows)
                self._keep[index] = match(self._prompt.rows[index], rows, alive).keep
            except InputError as error:
                raise InputError(f"layer {index}: {error}") from error
            del self.layers[index]
        module.masked_key_indices = None

    def mask(self, shape: tuple[int, int, int]) -> NDArray[np.bool_]:
        """Return the keep mask ``[layers, kv_heads, tokens]``; a layer that the press left alone is kept."""
        mask = np.ones(shape, np.bool_)
        for index, keep in self._keep.items():
            mask[index] = keep.cpu().numpy()
        return mask
