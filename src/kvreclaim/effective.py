"""The effective mask: what attention sees in a runtime that can only drop whole blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from kvreclaim.keep import KeepMask, as_keep_mask
from kvreclaim.layout.tables import BlockLayout
from kvreclaim.occupancy import occupancy


def effective_mask(keep: KeepMask | ArrayLike, layout: BlockLayout) -> KeepMask:
    """Return the pairs that stay attended when only whole dead blocks leave: the OR, rounded out to blocks.

    It frees the blocks that the mask itself frees, and does less harm: what is dead inside a held block is
    attended as before. Layers with a window see none of what lies before it, as without eviction.

    Parameters
    ----------
    keep
        The mask that was asked for: a `KeepMask`, or an array of rank 1 to 3.
    layout
        Block size, kind of block table and layer groups.

    Raises
    ------
    InputError
        If the mask or the layout is not one, or the layout's groups do not fit the mask's layers.
    """
    mask = as_keep_mask(keep)
    held = occupancy(mask, layout) > 0
    held = np.repeat(held, min(layout.block_size, mask.tokens), axis=1)[:, : mask.tokens]
    attended = np.empty(mask.array.shape, np.bool_)
    per_head = attended.reshape(-1, mask.tokens)
    for rows, tokens in zip(layout.rows_of_tables(mask.layers, mask.kv_heads), held, strict=True):
        per_head[rows] = tokens
    for group in layout.groups_of(mask.layers):
        if group.window is not None:
            attended[list(group.layers), :, : max(0, mask.tokens - group.window)] = False
    return KeepMask(attended, mask.name, mask.metadata)
