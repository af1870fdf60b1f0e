"""The ledger between a keep mask and a runtime's free list: `audit`.

Vocabulary (docs/vocabulary.md): a block is free when no token in it is live in any layer and head that shares
its table; all figures are pooled over the tables, never averaged over them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim.census import Census, census
from kvreclaim.compaction.choose import cost_of_histogram
from kvreclaim.errors import InputError
from kvreclaim.histogram import fullest_sum, nonempty, total
from kvreclaim.keep import KeepMask, as_keep_mask
from kvreclaim.layout.geometry import KVGeometry
from kvreclaim.layout.tables import BlockLayout, check_layout
from kvreclaim.ledger_view import ledger_html
from kvreclaim.validate import shown

DEFAULT_LAYOUT = BlockLayout()


@dataclass(frozen=True)
class Compaction:
    """Full compaction: whole tokens, of all tensors that share a table, move into fewer blocks.

    ``min_blocks`` that the live tokens need; ``freed_blocks`` that compaction itself frees; ``moved_tokens``
    the fewest that must move; ``slots_per_move`` slots of the freed blocks per moved token (None where none
    moves); ``moved_tokens_per_freed_block`` (None where it frees nothing); ``moved_bytes`` (None without a
    geometry).
    """

    min_blocks: int
    freed_blocks: int
    moved_tokens: int
    slots_per_move: float | None
    moved_tokens_per_freed_block: float | None
    moved_bytes: int | None


@dataclass(frozen=True)
class Packing:
    """Packing: each head packs its own survivors; the fullest head of a table says how many blocks it needs.

    The blocks kept in place are those with the most live pairs. ``blocks_needed``; ``physical_reclaim`` after
    packing; ``moved_pairs`` the fewest KV pairs that must move; ``moved_bytes`` (None without a geometry).
    """

    blocks_needed: int
    physical_reclaim: float
    moved_pairs: int
    moved_bytes: int | None


@dataclass(frozen=True)
class Ledger:
    """What a keep mask gives back to a block allocator; made by `audit`.

    Values that are undefined are None: efficiency where nothing was evicted, fragmentation and stranded where
    no block is held, bytes without a geometry.

    Parameters
    ----------
    policy
        The mask's policy or name.
    layers, kv_heads, tokens
        Shape of the mask.
    block_size, block_tables
        The layout.
    blocks, free_blocks
        Blocks of all tables, and those of them without a live token, free with zero copies.
    logical_saving
        Fraction of KV pairs that are dead.
    physical_reclaim
        ``free_blocks / blocks``.
    reclaim_efficiency
        ``physical_reclaim / logical_saving``; a partial last block can lift it over 1.
    fragmentation
        1 - live slots / (held blocks × block size), after the OR; unfilled slots of a last block count.
    stranded
        Share of the filled KV pairs in held blocks that are dead.
    live_union
        Live tokens after the OR, over all tables.
    compaction, packing
        What freeing more would cost.
    bytes_freed
        Bytes of the free blocks; None without a geometry.
    """

    policy: str
    layers: int
    kv_heads: int
    tokens: int
    block_size: int
    block_tables: str
    blocks: int
    free_blocks: int
    logical_saving: float
    physical_reclaim: float
    reclaim_efficiency: float | None
    fragmentation: float | None
    stranded: float | None
    live_union: int
    compaction: Compaction
    packing: Packing
    bytes_freed: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the ledger as plain, JSON-ready values, with ``compaction`` and ``packing`` nested."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return ledger_html(self.to_dict())


def audit(
    keep: KeepMask | ArrayLike,
    layout: BlockLayout = DEFAULT_LAYOUT,
    geometry: KVGeometry | None = None,
) -> Ledger:
    """Audit a keep mask against a block layout.

    Parameters
    ----------
    keep
        A `KeepMask`, or an array of rank 1 ``[tokens]``, 2 ``[kv_heads, tokens]`` or 3
        ``[layers, kv_heads, tokens]``.
    layout
        Block size in tokens, kind of block table, layer groups; by default blocks of 16, one shared table.
    geometry
        The model's KV geometry, for bytes. Its layers and heads must be the mask's, except that a mask of one
        layer and one head stands for all of them: the same tokens are evicted everywhere.

    Raises
    ------
    InputError
        If mask, layout or geometry is not one, or layout or geometry do not fit the mask.
    """
    mask = as_keep_mask(keep)
    check_layout(layout)
    pair_bytes = None if geometry is None else _pair_bytes(mask, geometry)
    counts = census(mask, layout)
    blocks_of_table = layout.blocks(mask.tokens)
    held_of_table = nonempty(counts.live_tokens)
    blocks, held = blocks_of_table * len(held_of_table), int(held_of_table.sum())
    live_union, live_pairs = int(total(counts.live_tokens).sum()), int(total(counts.live_pairs).sum())
    logical, reclaim = 1 - live_pairs / mask.array.size, (blocks - held) / blocks
    return Ledger(
        policy=mask.policy,
        layers=mask.layers,
        kv_heads=mask.kv_heads,
        tokens=mask.tokens,
        block_size=layout.block_size,
        block_tables=layout.block_tables,
        blocks=blocks,
        free_blocks=blocks - held,
        logical_saving=logical,
        physical_reclaim=reclaim,
        reclaim_efficiency=_ratio(reclaim, logical),
        fragmentation=None if held == 0 else 1 - live_union / (held * layout.block_size),
        stranded=None
        if held == 0
        else 1 - live_pairs / _filled_pairs_held(counts, mask.tokens, layout.block_size),
        live_union=live_union,
        compaction=_compaction(counts, layout.block_size, pair_bytes),
        packing=_packing(counts, layout.block_size, blocks, pair_bytes),
        bytes_freed=_bytes((blocks_of_table - held_of_table) * counts.heads * layout.block_size, pair_bytes),
    )


def _compaction(counts: Census, block_size: int, pair_bytes: int | None) -> Compaction:
    cost = cost_of_histogram(counts.live_tokens, block_size)
    freed, moved = int(cost.freed_blocks.sum()), int(cost.moved_tokens.sum())
    return Compaction(
        min_blocks=int(cost.min_blocks.sum()),
        freed_blocks=freed,
        moved_tokens=moved,
        slots_per_move=_ratio(freed * block_size, moved),
        moved_tokens_per_freed_block=_ratio(moved, freed),
        moved_bytes=_bytes(cost.moved_tokens * counts.heads, pair_bytes),
    )


def _packing(counts: Census, block_size: int, blocks: int, pair_bytes: int | None) -> Packing:
    needed = -(-counts.fullest_head // block_size)
    moved = total(counts.live_pairs) - fullest_sum(counts.live_pairs, needed)
    return Packing(
        blocks_needed=int(needed.sum()),
        physical_reclaim=(blocks - int(needed.sum())) / blocks,
        moved_pairs=int(moved.sum()),
        moved_bytes=_bytes(moved, pair_bytes),
    )


def _filled_pairs_held(counts: Census, tokens: int, block_size: int) -> int:
    """Count the KV pairs, live or dead, that fill the held blocks; the last block may have unfilled slots."""
    unfilled = -tokens % block_size
    slots = nonempty(counts.live_tokens) * block_size - counts.last_block_held * unfilled
    return int(slots @ counts.heads)


def _pair_bytes(mask: KeepMask, geometry: KVGeometry) -> int:
    if not isinstance(geometry, KVGeometry):
        raise InputError(
            f"geometry is {shown(geometry)}: pass a KVGeometry, such as kvreclaim.layout.model('llama-3-8b')"
        )
    if (mask.layers, mask.kv_heads) == (1, 1):
        return geometry.bytes_per_token
    if (mask.layers, mask.kv_heads) != (geometry.layers, geometry.kv_heads):
        raise InputError(
            f"{geometry.name} has {geometry.layers} layers of {geometry.kv_heads} KV heads, "
            f"the mask {mask.layers} of {mask.kv_heads}; pass the model that the mask was made on"
        )
    return geometry.bytes_per_pair


def _bytes(pairs: NDArray[np.int64], pair_bytes: int | None) -> int | None:
    return None if pair_bytes is None else int(pairs.sum()) * pair_bytes


def _ratio(value: float, by: float) -> float | None:
    return value / by if by else None
