from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import keep_arrays

from kvreclaim import (
    BlockLayout,
    InputError,
    KeepMask,
    audit,
    load_keep_masks,
    occupancy,
    plan_compaction,
    save_keep_masks,
)
from kvreclaim.effective import effective_mask
from kvreclaim.layout import BLOCK_TABLES, LayerGroup
from kvreclaim.occupancy import live_tokens


def by_hand(row, block_size):
    return [int(row[start : start + block_size].sum()) for start in range(0, len(row), block_size)]


@given(keep_arrays(), st.integers(1, 70))
def test_counts_per_head(keep, block_size):
    counts = occupancy(keep, BlockLayout(block_size, "per_head"))
    assert counts.tolist() == [by_hand(row, block_size) for row in keep.reshape(-1, keep.shape[2])]


@given(keep_arrays(), st.integers(1, 70))
def test_counts_of_the_union(keep, block_size):
    assert occupancy(keep, BlockLayout(block_size)).tolist() == [by_hand(keep.any(axis=(0, 1)), block_size)]
    per_layer = occupancy(keep, BlockLayout(block_size, "per_layer"))
    assert per_layer.tolist() == [by_hand(layer.any(axis=0), block_size) for layer in keep]


@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 32, 63, 64, 65, 128, 255, 256, 257, 1600])
def test_long_masks_of_every_kind_of_block(block_size):
    """Longer than a slab and a strip, of a length that no block size divides."""
    keep = np.random.default_rng(block_size).random(5_000_003) < 0.3
    padded = np.zeros(-(-keep.size // block_size) * block_size, bool)
    padded[: keep.size] = keep
    counts = occupancy(keep, BlockLayout(block_size))
    assert np.array_equal(counts[0], padded.reshape(-1, block_size).sum(axis=1))
    assert counts.dtype == np.min_scalar_type(block_size)


def test_many_heads_over_several_slabs():
    keep = np.random.default_rng(0).random((8, 16, 70_001)) < 0.02
    union = keep.any(axis=(0, 1))
    padded = np.zeros(-(-union.size // 24) * 24, bool)
    padded[: union.size] = union
    assert np.array_equal(occupancy(keep, BlockLayout(24))[0], padded.reshape(-1, 24).sum(axis=1))


def test_windows_across_slabs():
    keep = np.ones((4, 64, 40_000), bool)
    groups = (LayerGroup((0, 2)), LayerGroup((1, 3), window=30_001))
    counts = occupancy(keep, BlockLayout(16, "shared", groups))
    assert counts.sum(axis=1).tolist() == [40_000, 30_001]
    assert keep.all(), "the caller's mask is not touched"


def test_live_tokens_are_the_union():
    keep = np.random.default_rng(1).random((3, 2, 77)) < 0.2
    assert np.array_equal(live_tokens_of(keep, "per_layer"), keep.any(axis=1))


def live_tokens_of(keep, block_tables):
    return live_tokens(KeepMask(keep), BlockLayout(16, block_tables))


@pytest.mark.parametrize("block_size", [0, -1, 1.5, True, "16", None])
def test_bad_block_sizes(block_size):
    with pytest.raises(InputError, match="block_size"):
        BlockLayout(block_size)


def test_unknown_block_tables():
    with pytest.raises(InputError, match="shared, per_layer, per_head"):
        BlockLayout(16, "per-token")


def test_bad_layer_groups():
    with pytest.raises(InputError, match="distinct layer indices"):
        LayerGroup((1, 1))
    with pytest.raises(InputError, match="two layer groups"):
        BlockLayout(16, "shared", (LayerGroup((0, 1)), LayerGroup((1,))))


@given(keep_arrays(), st.sampled_from(list(permutations(range(3)))), st.data())
def test_the_order_of_a_mask_in_memory_does_not_matter(keep, axes, data):
    """Every order of the axes in memory, every other element, backwards: the same mask, the same figures."""
    steps = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in axes)
    laid = np.asarray(keep.transpose(axes), order="C").transpose(np.argsort(axes))[steps]
    plain = np.ascontiguousarray(laid)
    layout = BlockLayout(
        data.draw(st.sampled_from([1, 3, 8, 16, 32, 64])), data.draw(st.sampled_from(BLOCK_TABLES))
    )
    assert np.array_equal(occupancy(laid, layout), occupancy(plain, layout))
    assert audit(laid, layout) == audit(plain, layout)
    assert np.array_equal(effective_mask(laid, layout).array, effective_mask(plain, layout).array)
    moves, plain_moves = plan_compaction(laid, layout), plan_compaction(plain, layout)
    assert np.array_equal(moves.source_slot, plain_moves.source_slot)
    assert np.array_equal(moves.freed_blocks, plain_moves.freed_blocks)


@pytest.mark.parametrize("ending", [".npz", ".npy"])
def test_a_file_in_the_order_of_fortran(tmp_path, ending):
    keep = np.asfortranarray(np.random.default_rng(0).random((4, 2, 64)) < 0.1)
    save_keep_masks(tmp_path / f"m{ending}", [KeepMask(keep, "m")])
    read = load_keep_masks(tmp_path / f"m{ending}")[0]
    assert read.array.flags.f_contiguous
    assert occupancy(read, BlockLayout(16, "per_layer")).tolist() == [
        by_hand(layer.any(axis=0), 16) for layer in keep
    ]


@pytest.mark.parametrize("layout", [16, None, "shared"])
@pytest.mark.parametrize("count", [occupancy, audit, effective_mask, plan_compaction])
def test_a_layout_that_is_none(count, layout):
    with pytest.raises(InputError, match=r"layout is .*: pass a BlockLayout"):
        count(np.ones((2, 2, 32), bool), layout)


@pytest.mark.parametrize("groups", [(1, 2), None, "ab", 7, (LayerGroup((0,)), None)])
def test_groups_that_are_none(groups):
    with pytest.raises(InputError, match=r"groups are .*: pass a tuple of LayerGroup"):
        BlockLayout(groups=groups)


@pytest.mark.parametrize("layers", ["ab", None, (0.5,), (True,), (-1,), 3, ()])
def test_layers_that_are_none(layers):
    with pytest.raises(InputError, match="layer ind"):
        LayerGroup(layers)
