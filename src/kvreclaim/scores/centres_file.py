"""Query centres of a model in a file: calibrated where the model runs in transformers, used in a runtime.

An ``.npz`` or ``.safetensors`` file with ``centre``, ``spread`` and ``frequencies``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.maskfile import read_arrays, write_arrays
from kvreclaim.version import __version__

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class CentresFile:
    """What TriAttention's scores (in ``distance``, beside this file) want to know of a model.

    Parameters
    ----------
    centre, spread
        ``[layers, heads, head_dim]`` and ``[layers, heads, head_dim / 2]``: of each layer, as
        ``QueryCentres`` has them.
    frequencies
        ``[head_dim / 2]``: radians a token that each pair of dimensions is rotated by.

    Raises
    ------
    InputError
        If the arrays don't fit each other, or hold something else than finite numbers.
    """

    centre: Floats
    spread: Floats
    frequencies: Floats

    def __post_init__(self) -> None:
        half = self.frequencies.shape
        fits = (
            self.centre.ndim == 3 and len(half) == 1 and self.spread.shape == (*self.centre.shape[:2], *half)
        )
        if not fits or self.centre.shape[2] != 2 * half[0]:
            raise InputError(
                "query centres [layers, heads, head_dim], spreads and frequencies of half as many "
                f"dimensions: got {self.centre.shape}, {self.spread.shape} and {half}"
            )
        if not all(np.isfinite(part).all() for part in (self.centre, self.spread, self.frequencies)):
            raise InputError("query centres must be finite numbers: calibrate anew")

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file whole, or not at all."""
        parts = {name: getattr(self, name).astype(np.float32) for name in _NAMES}
        write_arrays(path, json.dumps({"kind": _KIND, "kvreclaim": __version__}), parts)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> CentresFile:
        """Read a file that `save` wrote; InputError if it is none."""
        _, arrays = read_arrays(path)
        if set(arrays) != set(_NAMES) or any(part.dtype != np.float32 for part in arrays.values()):
            raise InputError(f"{path}: holds no query centres: make it with kvreclaim calibrate queries")
        return cls(**arrays)

    @classmethod
    def load_for(cls, path: str | PathLike[str], layers: int, heads: int, head_dim: int) -> CentresFile:
        """Read the file of a model of so many layers, query heads and dimensions, else InputError."""
        known, wanted = cls.load(path), (layers, heads, head_dim)
        if known.centre.shape != wanted:
            raise InputError(
                f"{path} has query centres of {known.centre.shape}, the model {wanted}: calibrate it"
            )
        return known


_KIND = "query-centres"
_NAMES = ("centre", "spread", "frequencies")
