"""The baseline that users ask about first: the same cache in eight bits instead of sixteen.

Keys and values of a prompt are rounded to what a runtime would hold, and the model goes on from those. Two
formats, as vLLM has them:

- ``fp8``: E4M3, one scale for the keys and one for the values of each layer, here their largest value on the
  prompt (vLLM takes scales from the checkpoint, or 1);
- ``int8``: one scale for each token and head, its largest value by 127, itself held in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import DynamicCache

from kvreclaim.errors import InputError

FP8_LARGEST = 448.0  # of E4M3
INT8_LARGEST = 127.0
SCALE_BYTES = 2
SIXTEEN_BITS = 2  # bytes


def _as_fp8(rows: Tensor) -> Tensor:
    scale = rows.abs().max().clamp_min(1e-12) / FP8_LARGEST
    return (rows / scale).to(torch.float8_e4m3fn).to(rows.dtype) * scale


def _as_int8(rows: Tensor) -> Tensor:
    scale = (rows.abs().amax(dim=-1, keepdim=True) / INT8_LARGEST).clamp_min(1e-12)
    held = scale.to(torch.float16).clamp_min(torch.finfo(torch.float16).tiny).to(rows.dtype)
    return (rows / held).round().clamp(-INT8_LARGEST, INT8_LARGEST) * held


_FORMATS: dict[str, Callable[[Tensor], Tensor]] = {"fp8": _as_fp8, "int8": _as_int8}
FORMATS = tuple(_FORMATS)


def quantised(cache: DynamicCache, number_format: str) -> DynamicCache:
    """Return a copy of a prompt's cache, its keys and values rounded to a format and back.

    Parameters
    ----------
    cache
        The full cache of a prompt.
    number_format
        ``fp8`` or ``int8``.

    Raises
    ------
    InputError
        If there is no such format.
    """
    if number_format not in _FORMATS:
        raise InputError(f"no format {number_format!r}: pass one of {', '.join(FORMATS)}")
    rounded = _FORMATS[number_format]
    copy = DynamicCache()
    for index, layer in enumerate(cache.layers):
        keys, values = layer.keys, layer.values
        if keys is not None and values is not None:
            copy.update(rounded(keys), rounded(values), index)
    return copy


def bytes_saved(number_format: str, head_dim: int) -> float:
    """Return the fraction of a 16-bit cache's bytes that a format saves, its scales counted.

    Raises
    ------
    InputError
        If there is no such format.
    """
    if number_format not in _FORMATS:
        raise InputError(f"no format {number_format!r}: pass one of {', '.join(FORMATS)}")
    scales = SCALE_BYTES / head_dim if number_format == "int8" else 0.0  # a layer's own weighs nothing
    return 1 - (1 + scales) / SIXTEEN_BITS
