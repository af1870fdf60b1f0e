import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_by_hand import ledger as by_hand
from strategies import keep_arrays, layer_groups

from kvreclaim import BlockLayout, InputError, KeepMask, audit
from kvreclaim.layout import BLOCK_TABLES, LayerGroup
from kvreclaim.layout.geometry import KVGeometry

TABLES = st.sampled_from(BLOCK_TABLES)
SIZES = st.integers(1, 20)


@given(keep_arrays(), SIZES, TABLES, st.data())
def test_every_figure_follows_from_its_definition(keep, block_size, block_tables, data):
    groups = data.draw(layer_groups(keep.shape[0]))
    layout = BlockLayout(block_size, block_tables, tuple(LayerGroup(*group) for group in groups))
    found, true = audit(keep, layout), by_hand(keep, block_size, block_tables, groups)
    held = true["blocks"] - true["free"]
    logical = 1 - true["live_pairs"] / keep.size
    assert (found.blocks, found.free_blocks, found.live_union) == (
        true["blocks"],
        true["free"],
        true["live_union"],
    )
    assert found.logical_saving == logical
    assert found.physical_reclaim == true["free"] / true["blocks"]
    assert found.reclaim_efficiency == (found.physical_reclaim / logical if logical else None)
    assert found.fragmentation == (1 - true["live_union"] / (held * block_size) if held else None)
    assert found.stranded == (1 - true["live_pairs"] / true["filled"] if held else None)
    compaction, packing = found.compaction, found.packing
    assert (compaction.min_blocks, compaction.freed_blocks) == (true["min_blocks"], true["freed"])
    assert compaction.moved_tokens == true["moved"]
    assert compaction.slots_per_move == (
        true["freed"] * block_size / true["moved"] if true["moved"] else None
    )
    assert compaction.moved_tokens_per_freed_block == (
        true["moved"] / true["freed"] if true["freed"] else None
    )
    assert (packing.blocks_needed, packing.moved_pairs) == (true["needed"], true["moved_pairs"])
    assert packing.physical_reclaim == (true["blocks"] - true["needed"]) / true["blocks"]


@given(keep_arrays(), SIZES, TABLES)
def test_blocks_and_pairs_are_conserved(keep, block_size, block_tables):
    found = audit(keep, BlockLayout(block_size, block_tables))
    assert found.free_blocks + found.compaction.freed_blocks + found.compaction.min_blocks == found.blocks
    assert found.compaction.moved_tokens <= found.live_union
    assert found.packing.moved_pairs <= keep.sum()
    assert found.packing.blocks_needed <= found.compaction.min_blocks
    assert 0 <= found.physical_reclaim <= 1


@given(keep_arrays(), SIZES, TABLES, st.randoms(use_true_random=False))
def test_the_order_of_heads_does_not_matter(keep, block_size, block_tables, random):
    order = random.sample(range(keep.shape[1]), keep.shape[1])
    layout = BlockLayout(block_size, block_tables)
    assert audit(keep, layout) == audit(keep[:, order], layout)


@given(keep_arrays(), keep_arrays(), SIZES, TABLES)
def test_keeping_more_never_frees_more(keep, other, block_size, block_tables):
    more = keep | np.resize(other, keep.shape)
    layout = BlockLayout(block_size, block_tables)
    fewer, all_of_them = audit(keep, layout), audit(more, layout)
    assert all_of_them.free_blocks <= fewer.free_blocks
    assert all_of_them.compaction.min_blocks >= fewer.compaction.min_blocks
    assert all_of_them.packing.blocks_needed >= fewer.packing.blocks_needed


@given(keep_arrays(), SIZES)
def test_finer_tables_never_free_less(keep, block_size):
    shared, per_layer, per_head = (
        audit(keep, BlockLayout(block_size, tables)).physical_reclaim for tables in BLOCK_TABLES
    )
    assert shared <= per_layer <= per_head


def test_undefined_values_are_none():
    kept, dropped = audit(np.ones(32, bool)), audit(np.zeros(32, bool))
    assert kept.reclaim_efficiency is None
    assert kept.compaction.slots_per_move is None
    assert dropped.fragmentation is None
    assert dropped.stranded is None
    assert dropped.reclaim_efficiency == 1.0
    assert kept.bytes_freed is None


def test_efficiency_may_exceed_one_by_a_partial_last_block():
    keep = np.ones(17, bool)
    keep[16] = False
    assert audit(keep).reclaim_efficiency == pytest.approx(17 / 2)


def test_a_window_makes_older_tokens_dead_in_its_layers():
    keep = np.ones((2, 1, 64), bool)
    layout = BlockLayout(16, "shared", (LayerGroup((0,)), LayerGroup((1,), window=20)))
    found = audit(keep, layout)
    assert (found.blocks, found.free_blocks) == (8, 2)
    assert found.logical_saving == pytest.approx(44 / 128)


TINY = KVGeometry("tiny", layers=2, kv_heads=3, head_dim=8, dtype="float16")


def test_bytes_count_every_tensor_of_a_table():
    keep = np.zeros((2, 3, 32), bool)
    keep[:, :, 16] = True
    keep[0, 0, 0:2] = True
    pair = 2 * 8 * 2
    shared = audit(keep, BlockLayout(16), TINY)
    assert shared.bytes_freed == 0
    assert shared.compaction.moved_bytes == 1 * 6 * pair
    assert shared.packing.moved_bytes == 2 * pair
    per_head = audit(keep, BlockLayout(16, "per_head"), TINY)
    assert per_head.bytes_freed == 5 * 16 * pair
    assert per_head.compaction.moved_bytes == 1 * pair


def test_one_head_stands_for_all_heads_of_a_geometry():
    assert audit(np.zeros(32, bool), BlockLayout(16), TINY).bytes_freed == 32 * TINY.bytes_per_token


def test_a_geometry_of_another_shape_is_refused():
    with pytest.raises(InputError, match="tiny has 2 layers of 3 KV heads, the mask 1 of 3"):
        audit(np.zeros((3, 32), bool), BlockLayout(16), TINY)


def test_groups_must_cover_the_layers():
    with pytest.raises(InputError, match="each of the mask's 2 layers once"):
        audit(np.ones((2, 1, 8), bool), BlockLayout(16, "shared", (LayerGroup((0,)),)))


def test_to_dict_is_json_and_the_notebook_view_escapes():
    found = audit(KeepMask(np.ones(8, bool), name="<script>"))
    assert json.loads(json.dumps(found.to_dict()))["compaction"]["min_blocks"] == 1
    assert "<script>" not in found._repr_html_()
    assert "&lt;script&gt;" in found._repr_html_()


@pytest.mark.parametrize("geometry", ["llama-3-8b", 16, {}])
def test_a_geometry_that_is_none(geometry):
    with pytest.raises(InputError, match=r"geometry is .*: pass a KVGeometry"):
        audit(np.ones(32, bool), BlockLayout(), geometry)
