"""Four eviction strategies at one logical budget: reclaim against quality."""

from __future__ import annotations

from functools import partial

import polars as pl

from kvreclaim.report.charts import strategies as charts
from kvreclaim.report.charts.rows import only
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import Control, Drawing, Figure, Item, Section
from kvreclaim.report.sections.parts import Chart, faults
from kvreclaim.report.summary import Summary, at

EXPERIMENTS = ("strategies", "frontier")
POLICIES = ("random", "lowest-importance", "block-wise", "reclaimability-aware")
_NAMES = {"pareto-2": "Pareto, α = 2", "pareto-1.5": "Pareto, α = 1.5"}


def _distributions(summary: Summary) -> Control:
    options = tuple((name, _NAMES.get(name, name.capitalize())) for name in summary.settings("strategies"))
    return Control("distribution", "Importance", options)


def _rows(summary: Summary, distribution: str, metric: str) -> pl.DataFrame:
    experiment = f"strategies/{distribution}"
    rows = only(summary.rows(experiment, metric), POLICIES)
    return summary.with_rare_counts(experiment, rows) if metric == "physical_reclaim" else rows


def _drawings(
    summary: Summary, control: Control, chart: Chart, metric: str, x: float | None
) -> dict[tuple[str, ...], Drawing]:
    tables = {name: _rows(summary, name, metric) for name in control.values}
    return {(name,): partial(chart, table if x is None else at(table, x)) for name, table in tables.items()}


def _tradeoffs(summary: Summary, control: Control) -> dict[tuple[str, ...], Drawing]:
    return {
        (name,): partial(
            charts.tradeoff,
            at(_rows(summary, name, "physical_reclaim"), 0.5).filter(kind="simulated"),
            at(_rows(summary, name, "importance_loss"), 0.5).filter(kind="simulated"),
            summary.rows(f"frontier/{name}", "importance_loss"),
        )
        for name in control.values
    }


def _figures(summary: Summary, control: Control) -> tuple[Item, ...]:
    return (
        Figure(
            id="strategies-reclaim",
            title="Half of the tokens dropped, B = 16: what comes free",
            caption=(
                "The distribution of importance does not touch random or block-wise reclaim, nor that of "
                "lowest-importance eviction: with independent scores its victims lie as scattered as "
                "random ones. Hollow diamonds are closed forms."
            ),
            drawings=_drawings(summary, control, charts.by_policy, "physical_reclaim", 0.5),
            controls=(control,),
            series=POLICIES,
        ),
        Figure(
            id="strategies-tradeoff",
            title="Importance lost against blocks freed",
            caption=(
                "The dashed curve is the least importance that can be lost for a given reclaim. A point "
                "on it is one choice among many, not an optimum: the policy's share β slides along the "
                "curve."
            ),
            drawings=_tradeoffs(summary, control),
            controls=(control,),
            series=(*POLICIES, "minimum-loss"),
        ),
        Figure(
            id="strategies-fragmentation",
            title="Dead slots in the blocks still held",
            caption="What a runtime pays for and cannot use until the block is freed or compacted.",
            drawings=_drawings(summary, control, charts.fragmentation, "fragmentation", 0.5),
            controls=(control,),
            series=POLICIES,
        ),
        Figure(
            id="strategies-ratio",
            title="Reclaim as more tokens go",
            caption=(
                "The dashed diagonal is the logical saving. "
                "Scattered strategies stay flat until nearly everything is dropped."
            ),
            drawings=_drawings(summary, control, charts.over_ratio, "physical_reclaim", None),
            controls=(control,),
            series=(*POLICIES, "logical-saving"),
        ),
    )


def build(folder: Folder) -> Section:
    """Return the section of the eviction strategies."""
    summary = Summary.of(folder)
    control = _distributions(summary)
    experiment = f"strategies/{control.values[0]}"
    loss = {policy: summary.quantity(experiment, policy, "importance_loss", 0.5) for policy in POLICIES}
    free = {policy: summary.quantity(experiment, policy, "physical_reclaim", 0.5) for policy in POLICIES}
    aware = "reclaimability-aware"
    return Section(
        id="strategies",
        title="Four strategies, one budget",
        prose=(
            "Importance is drawn independently for each token; every strategy evicts the same number. "
            "Random takes any, lowest-importance the least important tokens, block-wise whole blocks of "
            "the least total importance, and reclaimability-aware half of its budget token by token and "
            "the other half where the least importance is left in a block.",
            f"With {control.options[0][1].lower()} importance and half of the tokens gone, "
            f"lowest-importance loses {loss['lowest-importance'].text} of the total importance and frees "
            f"{free['lowest-importance'].text} of the blocks; block-wise loses {loss['block-wise'].text} "
            f"and frees {free['block-wise'].text}; reclaimability-aware loses {loss[aware].text} and frees "
            f"{free[aware].text}.",
            "Importance is a stand-in for quality: the sum of scores that a model never produced. "
            "Independent scores are also a hard case for token-level eviction: where unimportant tokens "
            "lie together, it frees more.",
        ),
        items=(*_figures(summary, control), *faults(folder, "strategies")),
        sources=("study",),
    )
