"""A keep mask as data for drawing: blocks as rows, tokens as cells, and the moves of a compaction.

Everything is computed here; whoever draws it only colours cells. The map is of the shared block table: a cell
is live if any layer and head keeps its token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvreclaim.compaction import plan_compaction
from kvreclaim.keep import KeepMask
from kvreclaim.layout.tables import BlockLayout
from kvreclaim.ledger import audit
from kvreclaim.occupancy import live_tokens


def block_map(
    identifier: str, title: str, block_size: int, frames: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return a block map: frames (from `block_map_frame`) of one policy, over masks of equal length."""
    return {
        "id": identifier,
        "title": title,
        "block_size": block_size,
        "tokens": frames[0]["tokens"],
        "frames": list(frames),
    }


def block_map_frame(mask: KeepMask, block_size: int, compression_ratio: float) -> dict[str, Any]:
    """Return one frame of a block map, JSON-ready.

    Parameters
    ----------
    mask
        The keep mask.
    block_size
        Tokens of one block.
    compression_ratio
        The ratio that the frame is labelled with.

    Returns
    -------
    dict
        ``compression_ratio``, ``tokens``, ``keep`` (hex of the live tokens' bits, first token in the highest
        bit), the ledger's ``blocks``, ``free_blocks``, ``logical_saving``, ``physical_reclaim``,
        ``dead_tokens_held`` (tokens in held blocks that are dead in every head), and ``compaction`` with
        ``freed_blocks`` and ``moves`` ``[source, destination]`` as slots (block × block size + slot in the
        block). Where there is more than one head, also ``share`` (one hex digit per token, the share of heads
        that keep it in 15ths, rounded up) and the ledger's ``stranded``, the share of the KV pairs held that
        are dead.
    """
    layout = BlockLayout(block_size)
    ledger = audit(mask, layout)
    live = live_tokens(mask, layout)[0]
    frame = {
        "compression_ratio": compression_ratio,
        "tokens": mask.tokens,
        "keep": np.packbits(live).tobytes().hex(),
        "blocks": ledger.blocks,
        "free_blocks": ledger.free_blocks,
        "logical_saving": ledger.logical_saving,
        "physical_reclaim": ledger.physical_reclaim,
        "dead_tokens_held": _filled_slots_held(live, block_size) - ledger.live_union,
        "compaction": {"freed_blocks": ledger.compaction.freed_blocks, "moves": _moves(mask, layout)},
    }
    if mask.layers * mask.kv_heads > 1:
        frame |= {"share": _share(mask), "stranded": ledger.stranded}
    return frame


def _filled_slots_held(live: NDArray[np.bool_], block_size: int) -> int:
    starts = range(0, len(live), block_size)
    return sum(
        len(live[start : start + block_size]) for start in starts if live[start : start + block_size].any()
    )


def _moves(mask: KeepMask, layout: BlockLayout) -> list[list[int]]:
    plan = plan_compaction(mask, layout)
    sources = plan.source_block * layout.block_size + plan.source_slot
    destinations = plan.destination_block * layout.block_size + plan.destination_slot
    moves: list[list[int]] = np.stack([sources, destinations], axis=1).tolist()
    return moves


def _share(mask: KeepMask) -> str:
    share = mask.array.mean(axis=(0, 1))
    return "".join(f"{digit:x}" for digit in np.ceil(share * 15).astype(int))
