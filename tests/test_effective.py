"""The effective mask against its definition, pair by pair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import block_sizes, keep_arrays, layer_groups

from kvreclaim import BlockLayout, InputError, KeepMask, audit
from kvreclaim.effective import effective_mask
from kvreclaim.layout import BLOCK_TABLES, LayerGroup


def test_a_pair_is_attended_while_any_of_its_block_lives():
    keep = np.zeros((2, 1, 10), bool)
    keep[0, 0, 1] = keep[1, 0, 9] = True
    shared = effective_mask(KeepMask(keep, "mine"), BlockLayout(4))
    assert shared.array.tolist() == [[[True] * 4 + [False] * 4 + [True] * 2]] * 2
    assert shared.name == "mine"
    per_layer = effective_mask(keep, BlockLayout(4, "per_layer")).array
    assert per_layer[0, 0].tolist() == [True] * 4 + [False] * 6
    assert per_layer[1, 0].tolist() == [False] * 8 + [True] * 2


@given(st.data(), keep_arrays(), block_sizes, st.sampled_from(BLOCK_TABLES))
def test_against_the_definition(data, keep, block_size, kind):
    layers, _, tokens = keep.shape
    groups = tuple(LayerGroup(members, window) for members, window in data.draw(layer_groups(layers)))
    layout = BlockLayout(block_size, kind, groups)
    wanted = np.zeros_like(keep)
    window_of = {layer: group.window for group in groups for layer in group.layers}
    seen = keep.copy()
    for layer, window in window_of.items():
        if window is not None:
            seen[layer, :, : max(0, tokens - window)] = False
    for rows in layout.rows_of_tables(*keep.shape[:2]):
        places = [divmod(int(row), keep.shape[1]) for row in rows]
        for start in range(0, tokens, block_size):
            block = slice(start, start + block_size)
            if any(seen[layer, head, block].any() for layer, head in places):
                for layer, head in places:
                    window = window_of.get(layer)
                    first = 0 if window is None else max(0, tokens - window)
                    wanted[layer, head, max(start, first) : start + block_size] = True
    effective = effective_mask(keep, layout)
    assert (effective.array == wanted).all()
    assert not (seen & ~effective.array).any()
    assert audit(effective, layout).free_blocks == audit(keep, layout).free_blocks


def test_groups_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="groups must hold each"):
        effective_mask(np.ones((2, 1, 4), bool), BlockLayout(2, groups=(LayerGroup((0,)),)))


def test_a_block_larger_than_memory():
    """The tables of a mask have no more slots than it has tokens, whatever the size of a block."""
    keep = np.zeros((8, 8, 100), bool)
    keep[3, 2, 7] = True
    held = effective_mask(keep, BlockLayout(2**31 - 1, "per_head")).array
    assert held.all(axis=2).tolist() == keep.any(axis=2).tolist() == held.any(axis=2).tolist()
