"""Spatial correlation: token-level eviction frees blocks once importance clusters."""

from __future__ import annotations

from kvreclaim.report.charts import correlation as charts
from kvreclaim.report.charts.rows import only
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import Figure, Section
from kvreclaim.report.sections.parts import faults, plain
from kvreclaim.report.summary import Summary

EXPERIMENTS = ("correlation",)
_SERIES = ("lowest-importance", "block-wise", "gap")


def build(folder: Folder) -> Section:
    """Return the section of the correlation sweep."""
    summary = Summary.of(folder)
    rows = only(summary.rows("correlation", "physical_reclaim", "gap_to_block_wise"), _SERIES)
    none, full = (
        summary.quantity("correlation", "lowest-importance", "physical_reclaim", rho) for rho in (0, 1)
    )
    gap = summary.quantity("correlation", "gap", "gap_to_block_wise", 1)
    return Section(
        id="correlation",
        title="When unimportant tokens lie together",
        prose=(
            "A knob ρ mixes independent noise with a smooth field over positions, and keeps the "
            "distribution of importance the same. At ρ = 0 a token's importance says nothing about its "
            "neighbour's; at ρ = 1 it changes slowly, over about 50 tokens.",
            f"Lowest-importance eviction of half of the tokens frees {none.text} of the blocks at ρ = 0 "
            f"and {full.text} at ρ = 1, where {gap.text} is left to whole-block eviction: the blocks cut "
            "by the edges of its runs. Most of the rise comes late, above ρ = 0.5.",
            "Where a real model lies on this axis is not known from here; its masks say more.",
        ),
        items=(
            Figure(
                id="correlation-reclaim",
                title="Reclaim over the spatial share of importance",
                caption=(
                    "Half of the tokens dropped, B = 16, 512 blocks. The dashed line is the difference of "
                    "the other two. Hollow diamonds are closed forms: the random law at ρ = 0, Rice's "
                    "formula for the edges of smooth noise at ρ = 1."
                ),
                drawings=plain(charts.over_rho, rows),
                series=_SERIES,
            ),
            *faults(folder, "correlation"),
        ),
        sources=("study", "rice"),
    )
