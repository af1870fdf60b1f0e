"""Charts of the realistic shapes: StreamingLLM, SnapKV, H2O and random eviction at a matched budget."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.labelled import labelled_rows
from kvreclaim.report.charts.lines import lines
from kvreclaim.report.charts.plot import Axis
from kvreclaim.report.charts.rows import drawn, label, line_of, with_marks
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme
from kvreclaim.report.wording import number, percent, with_spread

_RECLAIM = Axis("Physical reclaim (share of blocks)", domain=(0, 0.6))
_POWERS_OF_TWO = (1, 2, 4, 8, 16, 32, 64)


def by_policy(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the physical reclaim of each shape at one block size and budget."""
    return labelled_rows(
        with_marks(table, "bar"), _RECLAIM, width, theme, x_name="Physical reclaim", reference=0.5
    )


def over_block_size(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the physical reclaim of each shape over the block size."""
    x = Axis("Block size B (tokens, log scale)", "log", domain=(4, 64), ticks=_POWERS_OF_TWO[2:])
    return lines(
        with_marks(table, "line"), x, _RECLAIM, width, theme, x_name="Block size", y_name="Physical reclaim"
    )


def over_retained(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the physical reclaim of each shape, and the logical saving, over the share of tokens retained."""
    x = table["x"].unique().sort()
    rows = pl.concat([with_marks(table, "line"), line_of("logical-saving", x, 1 - x)])
    retained = Axis("Retained (share of tokens)", domain=(0, 1))
    reclaim = Axis("Physical reclaim (share of blocks)", domain=(0, 1))
    return lines(rows, retained, reclaim, width, theme, x_name="Retained", y_name="Physical reclaim")


def over_cluster_length(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw SnapKV's physical reclaim over the length of its clusters of kept tokens."""
    x = Axis("Cluster length (tokens, log scale)", "log", domain=(1, 64), ticks=_POWERS_OF_TWO)
    return lines(
        with_marks(table, "line"),
        x,
        _RECLAIM,
        width,
        theme,
        x_name="Cluster length",
        y_name="Physical reclaim",
    )


def with_compaction(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw, for each shape, what is free at eviction and what compaction adds.

    Parameters
    ----------
    table
        Rows of the metrics physical_reclaim, compacted_reclaim and moved_fraction at one block size and
        budget.
    width, theme
        As in `plot`.
    """
    wide = {(row["policy"], row["metric"]): row for row in table.iter_rows(named=True)}
    parts = []
    for policy in table["policy"].unique(maintain_order=True):
        free, compacted, moved = (
            wide[policy, metric] for metric in ("physical_reclaim", "compacted_reclaim", "moved_fraction")
        )
        gained, in_all = compacted["mean"] - free["mean"], with_spread(compacted["mean"], compacted["std"])
        for series, metric, start, value in (
            ("at-eviction", free, 0.0, with_spread(free["mean"], free["std"])),
            ("by-compaction", compacted, free["mean"], f"{number(gained)} more, {in_all} in all"),
        ):
            part = drawn(pl.DataFrame([{**metric, "policy": series}]), "bar")
            parts.append(
                part.with_columns(
                    row=pl.lit(label(policy)),
                    row_value=pl.lit(f"{percent(moved['mean'])} of survivors move"),
                    start=pl.lit(start),
                    value=pl.lit(value),
                    low=pl.col("mean"),
                    high=pl.col("mean"),
                )
            )
    return labelled_rows(pl.concat(parts), _RECLAIM, width, theme, x_name="Share of blocks", reference=0.5)
