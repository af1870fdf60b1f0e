"""The chart of what is lost over what is copied, and the frontier that no other candidate beats."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts import names
from kvreclaim.report.charts.lines import lines
from kvreclaim.report.charts.plot import Axis, log_axis
from kvreclaim.report.charts.rows import drawn, label
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme
from kvreclaim.report.wording import number, percent

FRONTIER = "copies-frontier"
_HEIGHT = 400


def copies(table: pl.DataFrame, loss_title: str, log: bool, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw each candidate's loss over what is copied for the blocks it returns, and a line on the frontier.

    Parameters
    ----------
    table
        Rows with columns policy, x (MiB copied per request), mean (loss), std, n, kind and returned (share of
        the memory that comes back for these copies).
    loss_title
        What the loss is.
    log
        Whether losses stand on a logarithmic axis; all are positive then.
    width, theme
        As in `plot`.
    """
    table = with_frontier(table).sort("frontier", "x", "mean", descending=[True, False, False])
    most = float(table["x"].max() or 1.0)  # type: ignore[arg-type]  # polars types it loosely
    x = Axis("Copied (MiB per request)", domain=(-0.04 * most, 1.06 * most))
    y = log_axis(table["mean"], loss_title) if log else _linear_axis(table["mean"], loss_title)
    dots = _texts(drawn(table, "dot"), table).with_columns(
        ring=table["frontier"], side=pl.Series(_sides(table, x, y), dtype=pl.String)
    )
    best = table.filter("frontier").sort("x", "mean")
    curve = best.with_columns(policy=pl.lit(FRONTIER), std=pl.lit(None, pl.Float64))
    line = _texts(drawn(curve, "curve"), best).with_columns(
        x_text=pl.Series([f"{number(at)}, {label(key)}" for key, at in best.select("policy", "x").rows()]),
        ring=pl.lit(value=False),
        side=pl.lit(""),
    )
    rows = pl.concat([line, dots])
    also = [("Comes back", "returned")]
    return lines(rows, x, y, width, theme, x_name="MiB copied", y_name="Loss", also=also, height=_HEIGHT)


def with_frontier(table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with a column frontier: whether no other loses less, copies less and returns more.

    One beats another if it is as good or better in all three and better in one.
    """
    merits = [(-loss, -moved, back) for loss, moved, back in table.select("mean", "x", "returned").rows()]
    best = [
        not any(other != own and all(a >= b for a, b in zip(other, own, strict=True)) for other in merits)
        for own in merits
    ]
    return table.with_columns(frontier=pl.Series(best, dtype=pl.Boolean))


def _texts(rows: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(returned=pl.Series([percent(x) for x in table["returned"]], dtype=pl.String))


def _sides(table: pl.DataFrame, x: Axis, y: Axis) -> list[str]:
    """Return where each candidate's name stands."""

    def places(rows: pl.DataFrame) -> list[tuple[float, float]]:
        return [(x.share(across), 1 - y.share(up)) for across, up in rows.select("x", "mean").rows()]

    line = places(table.filter("frontier").sort("x", "mean"))
    return names.sides(places(table), [label(key) for key in table["policy"]], _HEIGHT, line)


def _linear_axis(values: pl.Series, title: str) -> Axis:
    least, most = min(values), max(values)
    margin = 0.08 * (most - least) or 0.5
    return Axis(title, domain=(least - margin, most + margin))


def copied_text(share: float) -> str:
    """Return a share of pairs as a percentage."""
    return f"{number(100 * share)} %"
