"""The tables of a measurement, from its cells: ``measured.csv`` and ``matched.csv``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from kvreclaim.capture.matched.ledger import MatchedRow, prompt_rows, summarise
from kvreclaim.capture.measure.cells import Cells, matched_cell
from kvreclaim.capture.measure.plan import Plan
from kvreclaim.capture.measure.settings import layouts
from kvreclaim.capture.measure.work import matches_of
from kvreclaim.keep import KeepMask
from kvreclaim.layout import KVGeometry
from kvreclaim.ledger import Ledger, audit
from kvreclaim.results import as_csv

# Seven digits: more than anyone reads, and the files stay small.
_DIGITS = 7


@dataclass(frozen=True)
class MeasuredRow:
    """A row of ``measured.csv``: a cell of the sweep under one block layout.

    Parameters
    ----------
    model
        Last part of the model's name or path.
    prompt, policy, ratio
        What was measured; ratio as asked for.
    retained
        Fraction of KV pairs kept, as measured.
    tokens
        Tokens of the prompt.
    block_size, block_tables, physical_reclaim, reclaim_efficiency, fragmentation, stranded
        As in `kvreclaim.ledger.Ledger`.
    packing_reclaim, packing_moved_pairs
        The ledger's ``packing.physical_reclaim`` and ``packing.moved_pairs``.
    kl, delta_nll, top1
        As in `kvreclaim.capture.quality.Quality`.
    """

    model: str
    prompt: str
    policy: str
    ratio: float
    retained: float
    tokens: int
    block_size: int
    block_tables: str
    physical_reclaim: float
    reclaim_efficiency: float | None
    fragmentation: float | None
    stranded: float | None
    packing_reclaim: float
    packing_moved_pairs: int
    kl: float
    delta_nll: float
    top1: float


@dataclass(frozen=True)
class MatchedPromptRow:
    """A row of ``matched_prompts.csv``: one policy on one prompt at r*, and how well the match came out.

    Parameters
    ----------
    prompt, policy, target_kl, ratio, reached
        As in `kvreclaim.capture.matched.fit.Match`.
    retained
        Fraction of KV pairs kept, as measured.
    kl, delta_nll, top1
        Quality of the mask made at r*; ``kl`` is to be near ``target_kl`` where r* lies inside the sweep.
    """

    prompt: str
    policy: str
    target_kl: float
    ratio: float
    reached: str
    retained: float
    kl: float
    delta_nll: float
    top1: float


def measured_rows(
    plan: Plan, cells: Cells, block_sizes: Sequence[int], geometry: KVGeometry
) -> Iterator[MeasuredRow]:
    """Audit every cell of the sweep under every block size and kind of table."""
    every_layout = [layout for size in block_sizes for layout in layouts(size, geometry)]
    for prompt in plan.prompts:
        for cell in plan.sweep_cells((prompt, plan.policies)):
            mask, quality = cells.mask(cell), cells.quality(cell)
            for layout in every_layout:
                yield MeasuredRow(
                    model=geometry.name,
                    prompt=cell.prompt,
                    policy=cell.policy,
                    ratio=cell.ratio,
                    retained=float(mask.array.mean()),
                    **_ledger_columns(audit(mask, layout)),
                    kl=quality.kl,
                    delta_nll=quality.delta_nll,
                    top1=quality.top1,
                )


def matched_rows(
    plan: Plan, cells: Cells, block_size: int, geometry: KVGeometry, request_tokens: int
) -> list[MatchedRow]:
    """Audit the masks made at matched quality; medians over prompts."""

    def remade(prompt: str, ratios: Mapping[str, float]) -> dict[str, KeepMask]:
        return {policy: cells.mask(matched_cell(prompt, policy, ratio)) for policy, ratio in ratios.items()}

    rows = prompt_rows(
        matches_of(plan, cells, plan.prompts),
        remade,
        layouts(block_size, geometry),
        geometry,
        request_blocks=-(-request_tokens // block_size),
    )
    return summarise(rows)


def matched_prompt_rows(plan: Plan, cells: Cells) -> list[MatchedPromptRow]:
    """Return what the masks made at matched quality keep, and what they cost."""
    rows = []
    for one in matches_of(plan, cells, plan.prompts):
        cell = matched_cell(one.prompt, one.policy, one.ratio)
        mask, quality = cells.mask(cell), cells.quality(cell)
        rows.append(
            MatchedPromptRow(
                **asdict(one),
                retained=float(mask.array.mean()),
                kl=quality.kl,
                delta_nll=quality.delta_nll,
                top1=quality.top1,
            )
        )
    return rows


def csv_of(kind: type, rows: Sequence[Any]) -> str:
    """Return rows of a kind (a dataclass) as CSV text, its fields as columns."""
    columns = [field.name for field in fields(kind)]
    return as_csv(columns, ({name: _short(getattr(row, name)) for name in columns} for row in rows))


def _ledger_columns(ledger: Ledger) -> dict[str, Any]:
    same = (
        "tokens",
        "block_size",
        "block_tables",
        "physical_reclaim",
        "reclaim_efficiency",
        "fragmentation",
        "stranded",
    )
    return {
        **{name: getattr(ledger, name) for name in same},
        "packing_reclaim": ledger.packing.physical_reclaim,
        "packing_moved_pairs": ledger.packing.moved_pairs,
    }


def _short(value: Any) -> Any:
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else value
