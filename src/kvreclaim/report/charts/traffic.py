"""Charts of traffic: requests and blocks over time, percentiles of waiting, and the load that is carried."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.labelled import labelled_rows
from kvreclaim.report.charts.lines import lines
from kvreclaim.report.charts.plot import Axis, Scale
from kvreclaim.report.charts.rows import drawn
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme


def over_time(table: pl.DataFrame, what: str, most: float, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw one quantity, of at most so much, over the seconds of the trace, a line a scenario."""
    x, y = Axis("Seconds since the first arrival"), Axis(what, domain=(0, most))
    return lines(drawn(table, "curve"), x, y, width, theme, x_name="Seconds", y_name=what)


def percentiles(table: pl.DataFrame, scale: Scale, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw seconds of waiting over the share of the requests that wait no longer."""
    x, y = Axis("Percentile of the requests", domain=(0, 100)), Axis("Seconds", scale)
    return lines(drawn(table, "curve"), x, y, width, theme, x_name="Percentile", y_name="Seconds")


def carried(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw a bar a variant: requests a second and GPU within the target."""
    rows = drawn(table, "bar").with_columns(row=table["name"])
    x = Axis("Requests a second and GPU", domain=(0, 1.1 * max(1e-9, float(table["mean"].max() or 0))))  # type: ignore[arg-type]  # polars types a maximum loosely
    return labelled_rows(rows, x, width, theme, x_name="Requests a second and GPU")
