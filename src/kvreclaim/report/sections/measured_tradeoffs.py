"""Figures of quality against memory: what comes back without a copy, and what copying costs."""

from __future__ import annotations

import polars as pl

from kvreclaim.report.charts import measured as charts
from kvreclaim.report.charts.advice import FRONTIER
from kvreclaim.report.measurements import TABLES, Measurements, pooled
from kvreclaim.report.section import Figure
from kvreclaim.report.sections.measured_findings import ENOUGH, means
from kvreclaim.report.sections.measured_parts import by_table, joined, table_control


def tradeoff(measured: Measurements) -> Figure | None:
    """Return harm over what comes back without a copy; None where no harm was measured."""
    if not (measured.frame["kl"] > 0).any():
        return None
    wall = [
        policy
        for policy, share in means(measured, measured.tables[0], "physical_reclaim").items()
        if share < ENOUGH
    ]
    left = (
        f" {TABLES[measured.tables[0]]}: {len(wall)} of {len(measured.policies)} policies never leave the "
        "left edge."
        if wall
        else ""
    )
    return Figure(
        id="measured-tradeoff",
        title="Harm against memory that comes back without a copy",
        caption=(
            "A line runs over the ratio; lower and further right is better. A colour is a family of "
            "policies (clusters of attention, attention so far, attention to come, keys alone, chunks, a "
            f"window); dash and shape tell its members apart.{left} B = {measured.block_size}."
        ),
        drawings=by_table(measured, charts.tradeoff, _kl_over_reclaim),
        controls=(table_control(measured),),
        series=measured.policies,
        wide=True,
    )


def copies(measured: Measurements) -> Figure | None:
    """Return harm over what packing copies; None without harm or without the model's geometry."""
    here = measured.at(measured.tables[0], ratio=measured.ratio)
    if measured.geometry is None or not (here["kl"] > 0).any():
        return None
    return Figure(
        id="measured-copies",
        title=f"Harm against what giving the blocks back copies, at ratio {measured.ratio:g}",
        caption=(
            "Lower and further left is better; harm is a geometric mean over prompts. Across: the "
            "fewest bytes of a prompt's cache that packing copies, so that all blocks come back that the "
            "survivors don't need. Rings, joined by the line: no other loses less, copies less and returns"
            f" as much. B = {measured.block_size}."
        ),
        drawings=by_table(measured, charts.over_copies, _kl_over_copies),
        controls=(table_control(measured),),
        series=(FRONTIER, *measured.policies),
        spread="means",
        wide=True,
    )


def _kl_over_copies(measured: Measurements, kind: str) -> pl.DataFrame:
    rows = measured.at(kind, ratio=measured.ratio)
    moved, back = (
        pooled(rows, metric).select("policy", pl.col("mean").alias(name))
        for metric, name in (("packing_moved_pairs", "moved"), ("packing_reclaim", "returned"))
    )
    pair = measured.geometry.bytes_per_pair if measured.geometry else 0
    logs = rows.filter(pl.col("kl") > 0).with_columns(log_kl=pl.col("kl").log())
    kl = pooled(logs, "log_kl").with_columns(mean=pl.col("mean").exp(), std=pl.lit(None, pl.Float64))
    table = kl.join(moved, on="policy").join(back, on="policy")
    return measured.ordered(table.with_columns(x=pl.col("moved") * pair / 2**20))


def _kl_over_reclaim(measured: Measurements, kind: str) -> pl.DataFrame:
    return joined(measured, kind, "physical_reclaim", "kl")
