"""The chart of the correlation sweep: token eviction frees blocks once importance clusters."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.lines import lines
from kvreclaim.report.charts.plot import Axis
from kvreclaim.report.charts.rows import with_marks
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme


def over_rho(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw reclaim of two strategies, and the gap between them, over the correlation of importance."""
    x = Axis("Spatial share ρ of the importance", domain=(0, 1))
    y = Axis("Physical reclaim (share of blocks)", domain=(0, 0.6))
    return lines(with_marks(table, "line"), x, y, width, theme, x_name="ρ", y_name="Share of blocks")
