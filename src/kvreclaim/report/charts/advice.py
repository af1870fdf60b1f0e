"""The chart of an advice: what is lost over what comes back, and the frontier that no candidate beats."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.lines import lines
from kvreclaim.report.charts.plot import Axis
from kvreclaim.report.charts.rows import drawn, label
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme
from kvreclaim.report.wording import number

FRONTIER = "frontier"


def tradeoff(table: pl.DataFrame, loss_title: str, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw each candidate's loss over the memory that comes back, and a line through the Pareto set.

    Parameters
    ----------
    table
        Rows with columns policy, x (physical reclaim), mean (loss), std, n, kind, copied (text) and pareto.
    loss_title
        What the loss is.
    width, theme
        As in `plot`.
    """
    copied = pl.Series(table["copied"], dtype=pl.String)
    dots = drawn(table, "dot").with_columns(copied=copied)
    best = table.filter("pareto").sort("x", "mean")
    curve = best.with_columns(policy=pl.lit(FRONTIER), std=0.0)
    at = [f"{number(x)}, {label(series)}" for series, x in best.select("policy", "x").rows()]
    line = drawn(curve, "curve").with_columns(
        copied=pl.Series(best["copied"], dtype=pl.String), x_text=pl.Series(at, dtype=pl.String)
    )
    rows = pl.concat([line, dots])
    x = Axis("Comes back (share of the KV cache)", domain=(-0.02, 1.0))
    losses = table["mean"].to_list()
    least, most = min(losses), max(losses)
    margin = 0.08 * (most - least) or 0.5
    y = Axis(loss_title, domain=(least - margin, most + margin))
    also = [("Pairs copied", "copied")]
    return lines(rows, x, y, width, theme, x_name="Comes back", y_name="Loss", also=also)


def copied_text(share: float) -> str:
    """Return a share of pairs as a percentage."""
    return f"{number(100 * share)} %"
