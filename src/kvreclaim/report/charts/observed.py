"""Charts of a real runtime: free blocks and running requests, step by step, beside what was predicted."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.lines import lines
from kvreclaim.report.charts.plot import Axis
from kvreclaim.report.charts.rows import drawn
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme


def free_blocks(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the free blocks of the pool after each step."""
    return _timeline(table, "Free blocks", width, theme)


def running(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the requests that ran in each step."""
    return _timeline(table, "Requests running", width, theme)


def _timeline(table: pl.DataFrame, title: str, width: Width, theme: Theme) -> alt.LayerChart:
    x, y = Axis("Step of the engine"), Axis(title)
    return lines(drawn(table, "curve"), x, y, width, theme, x_name="Step", y_name=title, height=240)
