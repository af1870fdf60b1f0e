"""What to use: the candidates of an advice, the frontier among them, and the one recommended."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.report.charts import advice as charts
from kvreclaim.report.charts.rows import label
from kvreclaim.report.folder import Folder
from kvreclaim.report.measurements import TABLES
from kvreclaim.report.relations import agree
from kvreclaim.report.section import BlockMaps, Figure, Item, KeyNumber, Notes, Section, Table
from kvreclaim.report.wording import counted, number

_LOSSES = {
    "continuation": "KL to the full model (geometric mean, nats, log scale)",
    "retrieval": "Needles missed (share of those that the full cache finds)",
}


def build(folder: Folder) -> Section:
    """Return the section of an advice."""
    table = folder.table("advice.csv")
    _check(folder, table)
    asked = folder.run["parameters"]
    prompts, matters = int(asked["prompts"]), str(asked["matters"])
    tables = TABLES[str(asked["block_tables"])].lower()
    budget = float(asked["copy_budget"])
    counts = int(asked["trials"]) if matters == "retrieval" else prompts
    return Section(
        id="advice",
        title="What to use",
        provenance=folder.made("Measured"),
        prose=(
            f"Candidates for {str(asked['model']).rpartition('/')[2]}, {counted(prompts, 'prompt')} of "
            f"{int(asked['context']):,} tokens: each evicts to ratio {float(asked['ratio']):g}. What "
            f"comes back is counted in blocks of {asked['block_size']} ({tables}), with at most "
            f"{charts.copied_text(budget)} of the KV pairs copied.",
            "What decides for all heads of a table together gives the memory back, and pays for it in "
            "quality beside the same scorer's own choice, head by head, which saves as much and gives "
            "nothing back. A cache in eight bits is the baseline: what it saves comes on top of an eviction.",
        ),
        items=(
            _figure(table, matters, budget, counts),
            Notes("The recommendation", (_reason(folder),)),
            *_block_maps(folder),
            _table(table, budget),
        ),
        key_numbers=_key_numbers(table, prompts),
        sources=("kvpress", "paged-attention", "snapkv", "streaming-llm"),
    )


def _check(folder: Folder, table: pl.DataFrame) -> None:
    """Refuse candidates that are not those of ``advice.json``, or another recommended than chosen there."""
    file, rows = folder.path / "advice.csv", folder.advice["rows"]
    chosen = folder.advice["choice"]["recommended"]
    if len(rows) != table.height:
        raise InputError(
            f"{file} has {table.height} rows, and advice.json {len(rows)}: pass a folder that kvreclaim "
            "wrote, whole"
        )
    for place, (found, said) in enumerate(zip(table.iter_rows(named=True), rows, strict=True), start=1):
        wanted = {name: said[name] for name in found if name in said}
        wanted["recommended"] = found["candidate"] == chosen
        for name, value in wanted.items():
            if not _same(found[name], value) or not _same(value, said[name]):
                raise InputError(
                    f"{file} has {found[name]} as {name!r} in row {place}, and advice.json {said[name]}, "
                    f"with {chosen} recommended: pass a folder that kvreclaim wrote, whole"
                )
    if chosen is not None and not table["recommended"].any():
        raise InputError(f"{file} has no 'candidate' {chosen}, which advice.json recommends: advise again")


def _same(found: object, wanted: object) -> bool:
    """Tell whether two values are one, texts of nothing and nothing alike."""
    if isinstance(found, int | float) and isinstance(wanted, int | float):
        return agree(found, wanted)
    return (found or None) == (wanted or None)


def _figure(table: pl.DataFrame, matters: str, budget: float, counts: int) -> Figure:
    evicting = table.with_columns(series=pl.Series(_series(table))).filter(pl.col("ratio") > 0)
    log = matters == "continuation"
    rows = evicting.select(
        policy="series",
        x="packing_mib",
        mean=pl.col("loss").exp() if log else pl.col("loss"),
        std=pl.lit(None, pl.Float64),
        n=pl.lit(counts),
        kind=pl.lit("measured"),
        returned="packing_reclaim",
    )
    title = _LOSSES.get(matters, "The user's own loss")
    return Figure(
        id="advice-tradeoff",
        title="What is lost, and what giving the blocks back copies",
        caption=(
            "A point is a candidate: lower and further left is better. Across: what packing copies so that "
            "all blocks come back that it evicts, whatever the budget"
            f"{_budget_words(table, budget)}. Rings, joined by the line: no other loses less, copies less "
            "and returns as much. Caches in eight bits copy nothing and stand in the table below."
        ),
        drawings={(): partial(charts.copies, rows, title, log)},
        series=(charts.FRONTIER, *evicting["series"]),
        spread="means",
        wide=True,
    )


def _budget_words(table: pl.DataFrame, budget: float) -> str:
    """Return the copy budget in MiB of a request, where any candidate's copies tell the scale."""
    moving = table.filter(pl.col("packing_moved_fraction") > 0)
    if moving.is_empty():
        return ""
    whole = moving["packing_mib"][0] / moving["packing_moved_fraction"][0]
    return f", here {number(budget * whole)} MiB"


def _series(table: pl.DataFrame) -> list[str]:
    """Return a key for each candidate: its names alone where no other has them, else with its parameters."""
    names = table["policy"].to_list()
    return [
        policy if names.count(policy) == 1 else candidate
        for policy, candidate in table.select("policy", "candidate").rows()
    ]


def _reason(folder: Folder) -> str:
    choice = folder.advice["choice"]
    others = [
        f"{one['name']} {one['difference']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}], p = {one['p']:.2g}"
        for one in choice["comparisons"]
        if one["low"] is not None
    ]
    beside = (
        ". Loss beside it, 95 % by a paired bootstrap over prompts, p by flipping signs; told apart where "
        f"both say so: {'; '.join(others)}"
        if others
        else ""
    )
    return f"{choice['reason']}{beside}."


def _block_maps(folder: Folder) -> tuple[Item, ...]:
    maps = tuple({**found, "title": label(str(found["title"]))} for found in folder.block_maps)
    if not maps:
        return ()
    return (
        BlockMaps(
            id="advice-map",
            title="Before and after: one prompt's masks, block by block",
            caption=(
                "What a shared table sees: a cell is a token, live while any head keeps it, and stronger the "
                "more of them do, before any copy. SnapKV's own choice leaves every block held; one decision "
                "for all heads leaves whole blocks free; swaps and blends free theirs once they have copied."
            ),
            maps=maps,
            views=tuple(dict.fromkeys(str(found["view"]) for found in maps if "view" in found)),
        ),
    )


def _table(table: pl.DataFrame, budget: float) -> Table:
    rows = tuple(
        (
            label(series) + (" (recommended)" if row["recommended"] else ""),
            number(row["loss"]),
            number(row["kl_ratio_to_snapkv"]),
            number(row["top1"]),
            "–" if row["needle"] is None else number(row["needle"]),
            number(row["physical_reclaim"]),
            _copied(row, budget),
            f"{row['admitted']:,}",
            number(row["gib"]),
        )
        for series, row in zip(_series(table), table.iter_rows(named=True), strict=True)
    )
    return Table(
        id="advice-table",
        title="Every candidate",
        caption=(
            "Means over prompts, measured; KL by SnapKV's is a geometric mean. Where packing would exceed "
            "the copy budget nothing is copied, and only what is free as it stands comes back."
        ),
        columns=(
            *("Candidate", "Loss", "KL by SnapKV's", "Top-1", "Needles found"),
            *("Comes back", "Pairs copied", "Requests admitted", "GiB back"),
        ),
        rows=rows,
        numeric=frozenset(range(1, 9)),
    )


def _copied(row: Mapping[str, Any], budget: float) -> str:
    needs, more = row["packing_moved_fraction"], row["packing_reclaim"] > row["physical_reclaim"]
    if more and needs > budget and not row["moved_fraction"]:
        return f"none: it takes {charts.copied_text(needs)}, over the {charts.copied_text(budget)} allowed"
    return charts.copied_text(row["moved_fraction"])


def _key_numbers(table: pl.DataFrame, prompts: int) -> tuple[KeyNumber, ...]:
    found = table.filter("recommended")
    if not found.height:
        return ()
    row, series = found.row(0, named=True), _series(table)[table["recommended"].to_list().index(True)]
    return (
        KeyNumber(
            f"{100 * row['physical_reclaim']:.1f} %",
            f"of the KV memory back with {charts.copied_text(row['moved_fraction'])} of the pairs copied, at "
            f"{row['kl_ratio_to_snapkv']:.2f} times SnapKV's KL: {label(series)}",
            f"measured, n = {prompts}",
        ),
    )
