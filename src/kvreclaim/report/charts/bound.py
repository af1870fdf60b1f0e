"""Charts of the scatter law: what independent eviction frees, over the compression ratio."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.lines import lines
from kvreclaim.report.charts.plot import Axis, Scale
from kvreclaim.report.charts.rows import drawn, line_of
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme

_RATIO = Axis("Compression ratio q (share evicted)", domain=(0, 1))
_LOG_TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def _share(title: str, scale: Scale) -> Axis:
    if scale == "log":
        return Axis(title, "log", domain=(1e-6, 1), ticks=_LOG_TICKS)
    return Axis(title, domain=(0, 1))


def physical_reclaim(table: pl.DataFrame, scale: Scale, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw physical reclaim of each block size, and the logical saving, over the compression ratio."""
    x = table["x"].unique().sort()
    rows = pl.concat([drawn(table, "curve"), line_of("logical-saving", x, x)])
    y = _share("Physical reclaim (share of blocks)", scale)
    return lines(rows, _RATIO, y, width, theme, x_name="Compression ratio", y_name="Share freed")


def efficiency(table: pl.DataFrame, scale: Scale, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw reclaim efficiency of each block size over the compression ratio."""
    y = _share("Reclaim efficiency (physical / logical)", scale)
    return lines(
        drawn(table, "curve"),
        _RATIO,
        y,
        width,
        theme,
        x_name="Compression ratio",
        y_name="Reclaim efficiency",
    )
