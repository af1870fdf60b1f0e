"""Blocks by how full they are: all that the ledger needs of a block table, without sorting.

A histogram is int64 ``[tables, top + 1]``: column v counts the blocks of a table that hold v live tokens (or
pairs). Time and memory are linear in the number of blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.integer[Any]]
Histogram = NDArray[np.int64]

_STRIP = 1 << 16  # blocks counted at a time: their keys stay in cache


def histogram(counts: Counts, top: int) -> Histogram:
    """Count the blocks of each table ``[tables, blocks]`` by their value, 0 to ``top``."""
    tables, blocks = counts.shape
    result = np.zeros((tables, top + 1), np.int64)
    step = max(1, _STRIP // blocks)
    for start in range(0, tables, step):
        strip = result[start : start + step]
        offsets = (np.arange(len(strip)) * (top + 1))[:, None]
        for first in range(0, blocks, _STRIP):
            keys = counts[start : start + step, first : first + _STRIP] + offsets
            strip += np.bincount(keys.ravel(), minlength=strip.size).reshape(strip.shape)
    return result


def nonempty(blocks: Histogram) -> NDArray[np.int64]:
    """Count the blocks of each table that are not empty."""
    result: NDArray[np.int64] = blocks[:, 1:].sum(axis=1)
    return result


def total(blocks: Histogram) -> NDArray[np.int64]:
    """Sum the values of each table's blocks."""
    return blocks @ np.arange(blocks.shape[1])


def fullest_sum(blocks: Histogram, kept: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum the values of the ``kept[t]`` fullest blocks of each table t.

    The K fullest hold the sum over v >= 1 of min(K, blocks with at least v).
    """
    at_least = np.cumsum(blocks[:, :0:-1], axis=1)
    result: NDArray[np.int64] = np.minimum(at_least, kept[:, None]).sum(axis=1)
    return result
