"""Charts of real keep masks: what the kind of block table decides, and what copies can add."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.grouped import grouped_rows
from kvreclaim.report.charts.plot import Axis
from kvreclaim.report.charts.rows import drawn
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme


def _bars(table: pl.DataFrame, title: str, width: Width, theme: Theme) -> alt.LayerChart:
    rows = drawn(table, "bar").with_columns(row=table["name"], row_value=table["words"])
    return grouped_rows(rows, Axis(title, domain=(0, 1)), width, theme, x_name="Share of blocks")


def by_block_tables(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw physical reclaim of each policy under each kind of block table.

    Parameters
    ----------
    table
        Rows with columns name (the mask's), words (beside its name), policy (kind of block table), x, mean,
        std, n and kind.
    width, theme
        As in `plot`.
    """
    return _bars(table, "Physical reclaim (share of blocks)", width, theme)


def by_remedy(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw what each policy frees in the shared table without a copy, by compaction and by packing.

    Parameters
    ----------
    table
        As in `by_block_tables`, with the remedy as policy.
    width, theme
        As in `plot`.
    """
    return _bars(table, "Share of the shared table's blocks", width, theme)
