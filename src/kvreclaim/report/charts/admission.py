"""Charts of admission: requests that get all their blocks after an eviction."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.labelled import labelled_rows
from kvreclaim.report.charts.lines import lines
from kvreclaim.report.charts.plot import Axis
from kvreclaim.report.charts.rows import drawn
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme


def by_policy(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the requests admitted after each strategy at one ratio, and the logical expectation."""
    x = Axis("Requests admitted", domain=(0, 40))
    return labelled_rows(drawn(table, "bar"), x, width, theme, x_name="Requests admitted")


def over_ratio(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the requests admitted after each strategy over the compression ratio."""
    naive = pl.col("policy") == "naive"
    rows = pl.concat([drawn(table.filter(~naive), "line"), drawn(table.filter(naive), "curve")])
    x = Axis("Compression ratio q (share evicted)", domain=(0, 1))
    y = Axis("Requests admitted", domain=(0, 64), ticks=(0, 16, 32, 48, 64))
    return lines(rows, x, y, width, theme, x_name="Compression ratio", y_name="Requests admitted")
