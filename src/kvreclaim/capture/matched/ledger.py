"""The ledger at matched quality: what each policy gives back where all do equal harm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np

from kvreclaim.capture.matched.fit import ABOVE, BELOW, INSIDE, Match
from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask
from kvreclaim.layout import BLOCK_TABLES, BlockLayout, KVGeometry
from kvreclaim.ledger import Ledger, audit
from kvreclaim.statistics import bootstrap_interval
from kvreclaim.validate import positive_int

Remake = Callable[[str, Mapping[str, float]], Mapping[str, KeepMask]]
"""Takes a prompt and the ratio of each policy, returns each policy's keep mask; ratio 0 keeps everything."""

ZERO_COPY, COMPACTION, PACKING = "zero_copy", "compaction", "packing"
LAYOUTS = tuple(BlockLayout(16, tables) for tables in BLOCK_TABLES)
POOL_BLOCKS = 512


@dataclass(frozen=True)
class PromptRow:
    """What one policy gives back on one prompt, in one kind of block table, by one remedy.

    Parameters
    ----------
    prompt, policy, target_kl, ratio, reached
        The match; see `kvreclaim.capture.matched.fit.Match`.
    retained
        Fraction of KV pairs that the mask made at r* keeps, as measured.
    block_tables
        Kind of block table.
    remedy
        ``zero_copy``: whole dead blocks are freed; ``compaction``: whole tokens move; ``packing``: each head
        packs its own survivors.
    physical_reclaim
        Fraction of all blocks that is then free.
    moved_bytes
        What the remedy copies; None without a geometry.
    admitted
        Requests that fit in so large a part of a pool of 512 blocks.
    """

    prompt: str
    policy: str
    target_kl: float
    ratio: float
    reached: str
    retained: float
    block_tables: str
    remedy: str
    physical_reclaim: float
    moved_bytes: int | None
    admitted: int


@dataclass(frozen=True)
class MatchedRow:
    """Medians over prompts of `PromptRow`; a row of ``matched.csv``.

    Parameters
    ----------
    policy, block_tables, remedy
        What the row is of.
    target_kl, ratio, retained, physical_reclaim, moved_bytes, admitted
        Medians; r* outside its sweep enters as the bound that it is.
    low, high
        95 % bootstrap interval of the median physical reclaim.
    reached, below, above
        Prompts on which r* lies inside the sweep, below it and above it: all prompts together.
    """

    policy: str
    target_kl: float
    ratio: float
    retained: float
    block_tables: str
    remedy: str
    physical_reclaim: float
    low: float
    high: float
    moved_bytes: float | None
    admitted: float
    reached: int
    below: int
    above: int


def prompt_rows(
    matches: Sequence[Match],
    remake: Remake,
    layouts: Sequence[BlockLayout] = LAYOUTS,
    geometry: KVGeometry | None = None,
    request_blocks: SupportsIndex = 8,
) -> list[PromptRow]:
    """Make each policy's mask again at its r* and audit it.

    Reclaim is a step function of the mask, so it is never interpolated between those of a sweep.

    Parameters
    ----------
    matches
        From `kvreclaim.capture.matched.fit.match_all`.
    remake
        Called once a prompt, with the ratio of every policy.
    layouts
        Block layouts; by default the three kinds of table with blocks of 16 tokens.
    geometry
        The model's, for bytes.
    request_blocks
        Blocks that one request asks for.

    Raises
    ------
    InputError
        If a mask is missing, doesn't fit a layout or the geometry, or the request has no block.
    """
    blocks = positive_int(request_blocks, "request_blocks")
    by_prompt: dict[str, list[Match]] = {}
    for one in matches:
        by_prompt.setdefault(one.prompt, []).append(one)
    rows = []
    for prompt, members in by_prompt.items():
        masks = remake(prompt, {one.policy: one.ratio for one in members})
        for one in members:
            if one.policy not in masks:
                raise InputError(
                    f"remake gave no mask of {one.policy} on {prompt}: return one for every policy"
                )
            for layout in layouts:
                rows += _rows(one, masks[one.policy], audit(masks[one.policy], layout, geometry), blocks)
    return rows


def summarise(rows: Sequence[PromptRow]) -> list[MatchedRow]:
    """Return the medians over prompts, a row for each policy, kind of table and remedy, in their order."""
    groups: dict[tuple[str, str, str], list[PromptRow]] = {}
    for row in rows:
        groups.setdefault((row.policy, row.block_tables, row.remedy), []).append(row)
    return [_summary(members) for members in groups.values()]


def _rows(one: Match, mask: KeepMask, ledger: Ledger, request_blocks: int) -> list[PromptRow]:
    compaction, packing = ledger.compaction, ledger.packing
    freed = {
        ZERO_COPY: (ledger.free_blocks, None if ledger.bytes_freed is None else 0),
        COMPACTION: (ledger.free_blocks + compaction.freed_blocks, compaction.moved_bytes),
        PACKING: (ledger.blocks - packing.blocks_needed, packing.moved_bytes),
    }
    return [
        PromptRow(
            prompt=one.prompt,
            policy=one.policy,
            target_kl=one.target_kl,
            ratio=one.ratio,
            reached=one.reached,
            retained=float(mask.array.mean()),
            block_tables=ledger.block_tables,
            remedy=remedy,
            physical_reclaim=free / ledger.blocks,
            moved_bytes=moved,
            admitted=POOL_BLOCKS * free // ledger.blocks // request_blocks,
        )
        for remedy, (free, moved) in freed.items()
    ]


def _summary(rows: list[PromptRow]) -> MatchedRow:
    reclaim = [row.physical_reclaim for row in rows]
    moved = [row.moved_bytes for row in rows if row.moved_bytes is not None]
    reached = [row.reached for row in rows]
    low, high = bootstrap_interval(reclaim)
    return MatchedRow(
        policy=rows[0].policy,
        target_kl=_median([row.target_kl for row in rows]),
        ratio=_median([row.ratio for row in rows]),
        retained=_median([row.retained for row in rows]),
        block_tables=rows[0].block_tables,
        remedy=rows[0].remedy,
        physical_reclaim=_median(reclaim),
        low=low,
        high=high,
        moved_bytes=_median(moved) if len(moved) == len(rows) else None,
        admitted=_median([row.admitted for row in rows]),
        reached=reached.count(INSIDE),
        below=reached.count(BELOW),
        above=reached.count(ABOVE),
    )


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
