"""Series over a number, as lines and points."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from kvreclaim.report.charts import names
from kvreclaim.report.charts.plot import (
    TEXT,
    Axis,
    Columns,
    Encodings,
    assemble,
    closed_form,
    columns,
    spoken,
)
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme

_HEIGHT = 300


def lines(
    rows: pl.DataFrame,
    x: Axis,
    y: Axis,
    width: Width,
    theme: Theme,
    *,
    x_name: str,
    y_name: str,
    also: Sequence[tuple[str, str]] = (),
    height: int = _HEIGHT,
) -> alt.LayerChart:
    """Draw series over a number, with bars of one standard deviation and hollow diamonds for closed forms.

    Parameters
    ----------
    rows
        Drawn rows (see `rows.drawn`); columns left and right, if there, are bars of x, and a line joins its
        points by the column order, if there, else by x. Where column ring is true, a ring is drawn around
        the point; column side says where its name stands (see `names`).
    x, y
        The axes; a logarithmic y leaves out what is not positive.
    width
        Pixels, or "container".
    theme
        Colours.
    x_name, y_name
        What a pointer calls the two numbers.
    also
        Titles and columns of what else it shows.
    height
        Pixels.
    """
    if y.scale == "log":
        rows = rows.filter(pl.col("mean") > 0)
    roles = set(rows["role"])
    encodings, shown = Encodings(rows, theme), columns(y_name, x_name, also)
    base = alt.Chart().encode(x=alt.X("x:Q", axis=x.axis(), scale=x.to_scale()))
    coloured = base.encode(color=encodings.colour())
    at_y = alt.Y("mean:Q", axis=y.axis(), scale=y.to_scale())
    layers: list[alt.Chart] = []
    if roles & {"curve", "line"}:
        line = coloured.mark_line(clip=True, description=alt.expr("datum.label")).encode(
            y=at_y, strokeDash=encodings.dash(), detail="role:N"
        )
        line = line.encode(order="order:Q") if "order" in rows.columns else line
        layers.append(line.transform_filter("datum.role == 'curve' || datum.role == 'line'"))
    layers += _deviations(rows, coloured, at_y)
    if roles & {"line", "dot"}:
        size = 120 if "dot" in roles else 52
        points = coloured.mark_point(filled=True, opacity=1, size=size, description=spoken(shown))
        points = points.encode(y=at_y, shape=encodings.shape())
        layers.append(points.transform_filter("datum.role == 'line' || datum.role == 'dot'"))
    if "ring" in rows.columns:
        rings = base.mark_point(filled=False, size=330, strokeWidth=1.5, stroke=TEXT, opacity=1, aria=False)
        layers.append(rings.encode(y=at_y).transform_filter("datum.ring"))
    if "side" in rows.columns:
        layers += names.layers(base.encode(y=at_y), rows["side"].unique().to_list())
    if "mark" in roles:
        layers.append(closed_form(base.encode(y=at_y), size=30))
    if theme.interactive:
        layers.append(_nearest(coloured.encode(y=at_y), shown))
    return assemble(layers, rows, theme, (width, height), shown, f"{y_name} over {x_name.lower()}")


def _deviations(rows: pl.DataFrame, base: alt.Chart, at_y: alt.Y) -> list[alt.Chart]:
    """Return bars of one standard deviation, of y and of x, where any row has one."""
    found = []
    if (rows["high"] > rows["mean"]).any():
        along = base.mark_rule(aria=False, clip=True, style="error").encode(y=alt.Y("low:Q"), y2="high:Q")
        found.append(along.transform_filter("datum.high > datum.mean"))
    if "left" in rows.columns:
        across = base.mark_rule(aria=False, clip=True, style="error").encode(
            x=alt.X("left:Q"), x2="right:Q", y=at_y
        )
        found.append(across.transform_filter("datum.right > datum.left"))
    return found


def _nearest(base: alt.Chart, shown: Columns) -> alt.Chart:
    """Return points that show only under the pointer, and answer it from anywhere near them."""
    # The area around a point carries the point as its datum, which Vega-Lite's own tooltips overlook.
    fields = ", ".join(f"'{title}': (datum.datum || datum).{field}" for title, field in shown)
    near = alt.selection_point(
        name="nearest", on="pointerover", nearest=True, clear="pointerout", empty=False
    )
    points: alt.Chart = base.mark_point(filled=True, size=130, clip=True, tooltip=alt.expr(f"{{{fields}}}"))
    return points.encode(opacity=alt.condition(near, alt.value(0.35), alt.value(0))).add_params(near)
