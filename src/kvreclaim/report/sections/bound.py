"""The scatter law: what independent eviction frees."""

from __future__ import annotations

from functools import partial

import polars as pl

from kvreclaim.report.charts import bound as charts
from kvreclaim.report.charts.plot import Scale
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import Control, Drawing, Figure, KeyNumber, Section
from kvreclaim.report.sections.parts import LINEAR_FIRST, ScaledChart, faults
from kvreclaim.report.summary import Summary
from kvreclaim.report.wording import number, percent

EXPERIMENTS = ("bound",)
_LAW = Control(
    "law",
    "Law",
    (("independent", "Each token by itself, qᴮ"), ("exact", "Exactly qN tokens, hypergeometric")),
)


def _by_block_size(summary: Summary, law: str, metric: str) -> pl.DataFrame:
    """Return one law's curves, with the block size (such as ``B=16``) as the policy."""
    curves = [
        summary.rows(f"bound/{setting}", metric)
        .filter(pl.col("policy") == law)
        .with_columns(policy=pl.lit(setting))
        for setting in summary.settings("bound")
    ]
    return pl.concat(curves).sort("x", maintain_order=True)


def _drawings(summary: Summary, metric: str, chart: ScaledChart) -> dict[tuple[str, ...], Drawing]:
    scales: tuple[Scale, ...] = ("linear", "log")
    return {
        (scale, law): partial(chart, _by_block_size(summary, law, metric), scale)
        for scale in scales
        for law in _LAW.values
    }


def build(folder: Folder) -> Section:
    """Return the section of the scatter law."""
    summary = Summary.of(folder)
    sizes = summary.settings("bound")
    half = summary.quantity("bound/B=16", "independent", "physical_reclaim", 0.5, "closed form")
    exact = summary.quantity("bound/B=16", "exact", "physical_reclaim", 0.5, "closed form")
    three_quarters = summary.quantity("bound/B=16", "independent", "physical_reclaim", 0.75, "closed form")
    return Section(
        id="bound",
        title="What scattered eviction frees",
        prose=(
            "Drop each token by itself with probability q, and a block of B slots comes free only when "
            "all B are dropped: with probability qᴮ. The logical saving is q; the difference is memory "
            "that is paid for and unused.",
            f"At B = 16, evicting half of the tokens frees {percent(half.mean)} of the blocks, and "
            f"evicting three quarters frees {percent(three_quarters.mean)} (closed forms). Evicting "
            f"exactly half of 8,192 tokens, as the simulations do, frees {number(exact.mean)} in "
            f"expectation instead of {number(half.mean)}: the hypergeometric law, which falls further "
            "behind qᴮ as sequences get shorter.",
            "The law describes a scatter without structure. It says nothing about any method that keeps a "
            "window, a cluster or whole blocks, and it is an average: other masks free less.",
        ),
        items=(
            Figure(
                id="bound-reclaim",
                title="Physical reclaim falls away from the logical saving",
                caption=(
                    "The dashed line is the logical saving. The larger the block, the later its curve "
                    "leaves zero; the logarithmic scale shows how small the early values are."
                ),
                drawings=_drawings(summary, "physical_reclaim", charts.physical_reclaim),
                controls=(LINEAR_FIRST, _LAW),
                series=(*sizes, "logical-saving"),
            ),
            Figure(
                id="bound-efficiency",
                title="Efficiency: physical reclaim per unit of logical saving",
                caption=(
                    "Physical reclaim divided by the logical saving, qᴮ⁻¹. One token dropped earns its "
                    "full share of memory only where nearly everything is dropped."
                ),
                drawings=_drawings(summary, "reclaim_efficiency", charts.efficiency),
                controls=(LINEAR_FIRST, _LAW),
                series=sizes,
            ),
            *faults(folder, "bound"),
        ),
        key_numbers=(
            KeyNumber(
                percent(half.mean),
                "of the blocks come free when half of the tokens go at random (B = 16)",
                half.evidence,
            ),
        ),
        sources=("study", "paged-attention"),
    )
