"""The rows of an advice: a candidate each, with what it loses, frees and copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import exp
from typing import Any, NamedTuple

import numpy as np

from kvreclaim.advise.choose import Choice, Option
from kvreclaim.advise.losses import Figures
from kvreclaim.advise.settings import RETRIEVAL, SNAPKV, AdviceSettings
from kvreclaim.capture.measure.cells import Cells, sweep_cell
from kvreclaim.capture.measure.plan import Plan
from kvreclaim.capture.quality.quantised import FORMATS, bytes_saved
from kvreclaim.grammar import parse
from kvreclaim.layout import BlockLayout, KVGeometry
from kvreclaim.ledger import Ledger, audit

GIB, MIB = 1 << 30, 1 << 20


class Packed(NamedTuple):
    """What packing gives back, and the pairs that it copies, both as shares."""

    reclaim: float
    moved: float


@dataclass(frozen=True)
class AdviceRow:
    """A candidate; means over prompts.

    Parameters
    ----------
    candidate
        As it is passed to ``measure --policy``; ``fp8`` and ``int8`` are formats of the cache.
    policy, parameters
        Its names without parameters, and those, a name before each: ``block-swap.copies=0.03``.
    ratio
        Fraction of KV pairs evicted; 0 for a format.
    block_tables
        The runtime's kind.
    physical_reclaim
        Fraction of the KV memory that comes back: blocks freed, after packing where its copies are allowed;
        of a format the bytes that it saves.
    moved_fraction
        KV pairs copied for it, as a share of all.
    kl, top1
        As in `kvreclaim.capture.quality.Quality`.
    kl_ratio_to_snapkv
        Geometric mean over prompts of KL by SnapKV's at the same ratio.
    needle
        Share of needles found, of those that the full cache finds; None where they were not asked for.
    loss
        Mean of what counts: log KL, needles missed, or the user's own loss.
    packing_reclaim, packing_moved_fraction, packing_mib
        What packing gives back, whatever it copies; those copies as a share of all pairs, and in MiB of a
        prompt's cache. A format copies nothing.
    admitted
        Requests of the prompt's length that fit into the pool.
    gib
        GiB of the pool that come back.
    pareto, recommended
        Whether it evicts and no other that does beats it; whether it is the recommended one.
    """

    candidate: str
    policy: str
    parameters: str
    ratio: float
    block_tables: str
    physical_reclaim: float
    moved_fraction: float
    kl: float
    kl_ratio_to_snapkv: float
    top1: float
    needle: float | None
    loss: float
    packing_reclaim: float
    packing_moved_fraction: float
    packing_mib: float
    admitted: int
    gib: float
    pareto: bool = False
    recommended: bool = False

    def exceeds(self, copy_budget: float) -> bool:
        """Say whether packing would give more back, and was left out: its copies exceed the budget."""
        more = self.packing_reclaim > self.physical_reclaim and not self.moved_fraction
        return more and self.packing_moved_fraction > copy_budget

    def marked(self, pareto: bool, recommended: bool) -> AdviceRow:
        """Return the row with its marks."""
        return replace(self, pareto=pareto, recommended=recommended)


@dataclass(frozen=True)
class Advice:
    """The rows, best first by loss, and the choice."""

    rows: tuple[AdviceRow, ...]
    choice: Choice

    def to_dict(self) -> dict[str, Any]:
        """Return plain, JSON-ready values."""
        return {"rows": [asdict(row) for row in self.rows], "choice": self.choice.to_dict()}


def rows_of(
    settings: AdviceSettings,
    plan: Plan,
    cells: Cells,
    continuation: Sequence[Figures],
    judged: Sequence[Figures],
    geometry: KVGeometry,
) -> tuple[list[AdviceRow], list[Option]]:
    """Return a row and an option for each candidate and format, those of the least loss first."""
    groups = geometry.layer_groups() if geometry.windows else ()
    layout = BlockLayout(settings.block_size, settings.block_tables, groups)
    rows, options = [], []
    for name in (*plan.policies, *FORMATS):
        if name in FORMATS:
            freed, moved = bytes_saved(name, geometry.head_dim), 0.0
            packing = Packed(freed, 0.0)
        else:
            masks = [cells.mask(sweep_cell(prompt.name, name, settings.ratio)) for prompt in plan.prompts]
            ledgers = [audit(mask, layout) for mask in masks]
            shares = [_freed(ledger, settings.copy_budget) for ledger in ledgers]
            freed, moved = (float(np.mean(part)) for part in zip(*shares, strict=True))
            packing = Packed(*np.mean([_packed(ledger) for ledger in ledgers], axis=0).tolist())
        option = Option(name, tuple(one[name]["loss"] for one in judged), freed, moved, name not in FORMATS)
        options.append(option)
        rows.append(_row(option, packing, settings, continuation, geometry))
    order = sorted(range(len(rows)), key=lambda place: rows[place].loss)
    return [rows[place] for place in order], [options[place] for place in order]


def _freed(ledger: Ledger, copy_budget: float) -> tuple[float, float]:
    """Return what comes back and what is copied for it: by packing if its copies are allowed."""
    packing = _packed(ledger)
    packs = packing.moved <= copy_budget and packing.reclaim > ledger.physical_reclaim
    return (packing.reclaim, packing.moved) if packs else (ledger.physical_reclaim, 0.0)


def _packed(ledger: Ledger) -> Packed:
    pairs = ledger.layers * ledger.kv_heads * ledger.tokens
    return Packed(ledger.packing.physical_reclaim, ledger.packing.moved_pairs / pairs)


def _row(
    option: Option,
    packing: Packed,
    settings: AdviceSettings,
    continuation: Sequence[Figures],
    geometry: KVGeometry,
) -> AdviceRow:
    parts = parse(option.name)
    own = [one[option.name] for one in continuation]
    ratios = [one[option.name]["loss"] - one[SNAPKV]["loss"] for one in continuation]
    pool = settings.pool_gib * GIB
    prompt_bytes = geometry.bytes_per_token * settings.context
    held = prompt_bytes * (1 - option.physical_reclaim)
    return AdviceRow(
        candidate=option.name,
        policy=":".join(part.name for part in parts),
        parameters=" ".join(
            f"{part.name}.{key}={value}" for part in parts for key, value in part.parameters.items()
        ),
        ratio=settings.ratio if option.evicts else 0.0,
        block_tables=settings.block_tables,
        physical_reclaim=option.physical_reclaim,
        moved_fraction=option.moved_fraction,
        kl=float(np.mean([one["kl"] for one in own])),
        kl_ratio_to_snapkv=exp(float(np.mean(ratios))),
        top1=float(np.mean([one["top1"] for one in own])),
        needle=1 - option.loss if settings.matters == RETRIEVAL else None,
        loss=option.loss,
        packing_reclaim=packing.reclaim,
        packing_moved_fraction=packing.moved,
        packing_mib=packing.moved * prompt_bytes / MIB,
        admitted=int(pool / held) if held else 0,
        gib=settings.pool_gib * option.physical_reclaim,
    )
