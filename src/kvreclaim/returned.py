"""Bytes that return to the GPU when blocks lie in VMM pages: those of pages with every block free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask
from kvreclaim.layout import PER_HEAD, BlockLayout, KVGeometry
from kvreclaim.layout.pages import PageLayout, free_pages
from kvreclaim.occupancy import occupancy


def bytes_returned(mask: KeepMask, layout: BlockLayout, geometry: KVGeometry, page_bytes: int) -> int:
    """Return the bytes that an eviction gives back to the GPU, with zero copies.

    The request's blocks are taken to lie in pages in their order, as in an empty engine; each table's keys
    and values have pages of their own in each layer (kvcached). Keys and values of a layer or head that has a
    table of its own lie in its own pages.

    Parameters
    ----------
    mask, layout, geometry
        As of `ledger.audit`; the mask has the geometry's shape.
    page_bytes
        Bytes of a page.

    Raises
    ------
    InputError
        If a page does not hold whole blocks, or the mask is not of the geometry's shape.
    """
    if (mask.layers, mask.kv_heads) != (geometry.layers, geometry.kv_heads):
        raise InputError(
            f"{geometry.name} has {geometry.layers} layers of {geometry.kv_heads} KV heads, the mask "
            f"{mask.layers} of {mask.kv_heads}: pass another --model"
        )
    heads = 1 if layout.block_tables == PER_HEAD else geometry.kv_heads
    pages = PageLayout(replace(geometry, kv_heads=heads), layout.block_size, page_bytes)
    free = occupancy(mask, layout) == 0
    tables = layout.rows_of_tables(mask.layers, mask.kv_heads)
    layers = (len(rows) // heads for rows in tables)  # whose pages one table maps and unmaps together
    return sum(
        free_pages(row, pages.blocks) * page_bytes * 2 * count
        for row, count in zip(free, layers, strict=True)
    )


def page_rows(
    masks: Iterable[KeepMask], layout: BlockLayout, geometry: KVGeometry, page_bytes: int
) -> list[dict[str, Any]]:
    """Return a row for each page of each mask in one shared table: its blocks, and those with a live pair."""
    per_page = PageLayout(geometry, layout.block_size, page_bytes).blocks
    found = []
    for mask in masks:
        live = occupancy(mask, layout)[0] > 0
        starts = np.arange(0, live.size, per_page)
        counts = np.add.reduceat(live, starts, dtype=np.int64)
        sizes = np.diff(np.append(starts, live.size))
        found += [
            {"policy": mask.policy, "page": page, "live_blocks": int(count), "blocks": int(size)}
            for page, (count, size) in enumerate(zip(counts, sizes, strict=True))
        ]
    return found
