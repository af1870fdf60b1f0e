"""Which keys and values one block table maps, and how many tokens a block holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.validate import check_block_size, non_negative_int, positive_int, shown

Scalar = TypeVar("Scalar", bound=np.generic)

SHARED = "shared"
PER_LAYER = "per_layer"
PER_HEAD = "per_head"
BLOCK_TABLES = (SHARED, PER_LAYER, PER_HEAD)


@dataclass(frozen=True)
class LayerGroup:
    """Layers that see the same part of the context, and so share a block table where tables are shared.

    Parameters
    ----------
    layers
        Indices of the layers, from 0.
    window
        Attention window in tokens; None where the layers attend to everything. Of T tokens the last
        ``window`` are in it; the older ones count as dead.

    Raises
    ------
    InputError
        If there is no layer, an index is negative or repeated, or the window is not positive.
    """

    layers: tuple[int, ...]
    window: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.layers, str) or not isinstance(self.layers, Iterable):
            raise InputError(f"a layer group needs distinct layer indices from 0, got {shown(self.layers)}")
        layers = tuple(non_negative_int(layer, "a layer index") for layer in self.layers)
        if not layers or len(set(layers)) != len(layers):
            raise InputError(f"a layer group needs distinct layer indices from 0, got {layers}")
        object.__setattr__(self, "layers", layers)
        if self.window is not None:
            object.__setattr__(self, "window", positive_int(self.window, "the window of a layer group"))


@dataclass(frozen=True)
class BlockLayout:
    """How a runtime lays a request's tokens out in blocks.

    Parameters
    ----------
    block_size
        Tokens of one block (B).
    block_tables
        What one block table maps: ``shared`` (all layers and heads of a group: vLLM, SGLang, TensorRT-LLM),
        ``per_layer`` (all heads of one layer) or ``per_head`` (one head: KV-Compress, arXiv 2410.00161).
    groups
        Layers by their attention window, for hybrid and sliding-window models; each group has a table of
        its own where tables are shared (vLLM's KV cache groups). Empty: one group of all layers, no window.

    Raises
    ------
    InputError
        If the block size is not a positive integer, the kind of table unknown, a group is no `LayerGroup`, or
        a layer is in two groups.
    """

    block_size: int = 16
    block_tables: str = SHARED
    groups: tuple[LayerGroup, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_size", check_block_size(self.block_size))
        if self.block_tables not in BLOCK_TABLES:
            raise InputError(
                f"block_tables must be one of {', '.join(BLOCK_TABLES)}, got {self.block_tables!r}"
            )
        groups = tuple(self.groups) if isinstance(self.groups, Iterable) else (self.groups,)
        if not all(isinstance(group, LayerGroup) for group in groups):
            raise InputError(
                f"groups are {shown(self.groups)}: pass a tuple of LayerGroup, empty for one of all layers"
            )
        object.__setattr__(self, "groups", groups)
        grouped = [layer for group in self.groups for layer in group.layers]
        if len(set(grouped)) != len(grouped):
            raise InputError("a layer is in two layer groups; put each layer in one")

    def blocks(self, tokens: int) -> int:
        """Blocks that one table needs for ``tokens`` tokens; a partial last block counts as a block."""
        return -(-tokens // self.block_size)

    def groups_of(self, layers: int) -> tuple[LayerGroup, ...]:
        """Return the layer groups of a model with ``layers`` layers; InputError if they do not cover it."""
        if not self.groups:
            return (LayerGroup(tuple(range(layers))),)
        grouped = sorted(layer for group in self.groups for layer in group.layers)
        if grouped != list(range(layers)):
            raise InputError(
                f"the layout's groups must hold each of the mask's {layers} layers once, got {grouped}"
            )
        return self.groups

    def split(self, per_head: NDArray[Scalar]) -> list[NDArray[Scalar]]:
        """Sort values of each (layer, head) by the block table that maps them.

        Parameters
        ----------
        per_head
            Array ``[layers, kv_heads, ...]``.

        Returns
        -------
        list of arrays ``[tables, heads per table, ...]``
            One for each set of tables that map equally many heads: one for each group where tables are
            shared, else a single one. Together they hold every (layer, head) once, tables in order.
        """
        layers, kv_heads, *rest = per_head.shape
        groups = self.groups_of(layers)
        if self.block_tables == PER_HEAD:
            return [per_head.reshape(layers * kv_heads, 1, *rest)]
        if self.block_tables == PER_LAYER:
            return [per_head]
        whole = len(groups) == 1
        members = [per_head if whole else per_head[list(group.layers)] for group in groups]
        return [member.reshape(1, -1, *rest) for member in members]

    def rows_of_tables(self, layers: int, kv_heads: int) -> list[NDArray[np.int64]]:
        """Return for each table, in order, the rows ``layer * kv_heads + head`` that it maps."""
        rows = np.arange(layers * kv_heads).reshape(layers, kv_heads)
        return [table for part in self.split(rows) for table in part]


def check_layout(layout: BlockLayout) -> BlockLayout:
    """Return the layout itself; InputError if it is something else, such as a block size."""
    if not isinstance(layout, BlockLayout):
        raise InputError(f"layout is {shown(layout)}: pass a BlockLayout, such as BlockLayout(block_size=16)")
    return layout
