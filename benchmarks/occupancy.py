"""Occupancy, reclaim and the whole audit, against passes over the same mask.

The masks keep each token with probability one half. That favours the idiomatic ``any``, which ends a block at
its first live token; nothing in kvreclaim depends on the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.table import Row
from benchmarks.timing import PAIRS, estimate, in_turn
from kvreclaim import BlockLayout, KeepMask, audit, occupancy
from kvreclaim.layout import BLOCK_TABLES

WORD_SIZES = (8, 16, 32, 64)
SMALL_SIZES = (1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 15, 20, 24, 28, 33, 40)
LARGE_SIZES = (48, 63, 65, 80, 100, 127, 128, 200, 255, 256, 257, 400, 512, 800, 1024, 1600)
AUDITED = (32, 8, 131_072)

Mask = NDArray[np.bool_]


def run(quick: bool) -> Iterator[Row]:
    """Yield the rows; ``quick`` takes masks of an eighth of the size, and an eighth of that."""
    full, cached = (2**24, 2**21) if quick else (2**27, 2**24)
    mask = np.random.default_rng(0).random(full) < 0.5
    for block_size in WORD_SIZES:
        yield from _word_size(mask, block_size)
    for block_size in WORD_SIZES:
        yield _in_cache(mask[:cached], block_size)
    # Below 48 the idiomatic loops take so long that memory speed plays no part, and a short mask will do.
    for block_size in SMALL_SIZES:
        yield _other_size(mask[:cached], block_size)
    for block_size in LARGE_SIZES:
        yield _other_size(mask, block_size)
    layers, kv_heads, tokens = AUDITED
    yield _audit((layers, kv_heads, tokens // 16 if quick else tokens))


def _word_size(mask: Mask, block_size: int) -> Iterator[Row]:
    count, own, by_any, by_sum = in_turn(
        [lambda: np.count_nonzero(mask), *_contenders(mask, block_size)], rounds=PAIRS
    )
    both = by_any + by_sum
    name = f"occupancy and reclaim, B={block_size}, {_slots(mask)}"
    yield Row(name, "throughput, of np.count_nonzero's", "x", estimate(count / own), at_least=0.35)
    yield Row(name, "times as fast as .any(1) and .sum(1)", "x", estimate(both / own), at_least=15)
    yield Row(name, "times as fast as .any(1) alone", "x", estimate(by_any / own))
    yield Row(name, "times as fast as .sum(1) alone", "x", estimate(by_sum / own))
    yield Row(name, "for scale: np.count_nonzero, of .any(1) and .sum(1)", "x", estimate(both / count))


def _in_cache(mask: Mask, block_size: int) -> Row:
    own, by_any, by_sum = in_turn(_contenders(mask, block_size))
    name = f"occupancy and reclaim, B={block_size}, {_slots(mask)}"
    return Row(name, "times as fast as .any(1) and .sum(1)", "x", estimate((by_any + by_sum) / own))


def _other_size(mask: Mask, block_size: int) -> Row:
    whole = mask[: len(mask) // block_size * block_size]
    own, by_any, by_sum = in_turn(_contenders(whole, block_size))
    name = f"occupancy and reclaim, B={block_size}, {_slots(mask)}"
    ratio = estimate((by_any + by_sum) / own)
    return Row(name, "times as fast as .any(1) and .sum(1)", "x", ratio, at_least=2)


def _contenders(
    mask: Mask, block_size: int
) -> tuple[Callable[[], float], Callable[[], float], Callable[[], Mask]]:
    """Return occupancy with reclaim, the idiomatic reclaim and the idiomatic occupancy; they must agree."""
    keep, layout, blocks = KeepMask(mask), BlockLayout(block_size), mask.reshape(-1, block_size)

    def ours() -> float:
        live = occupancy(keep, layout)
        return 1 - np.count_nonzero(live) / live.size

    def idiomatic_any() -> float:
        return 1 - np.count_nonzero(blocks.any(1)) / len(blocks)

    def idiomatic_sum() -> Mask:
        return blocks.sum(1)

    assert ours() == idiomatic_any()
    assert np.array_equal(occupancy(keep, layout)[0], idiomatic_sum())
    return ours, idiomatic_any, idiomatic_sum


def _audit(shape: tuple[int, int, int]) -> Row:
    mask = np.random.default_rng(0).random(shape) < 0.5
    keep = KeepMask(mask)

    def whole_audit() -> None:
        for block_tables in BLOCK_TABLES:
            audit(keep, BlockLayout(16, block_tables))

    own, count = in_turn([whole_audit, lambda: np.count_nonzero(mask)])
    name = f"audit of {list(shape)}, three kinds of table, B=16"
    return Row(name, "passes of np.count_nonzero", "x", estimate(own / count), below=20)


def _slots(mask: Mask) -> str:
    return f"2^{len(mask).bit_length() - 1} slots"
