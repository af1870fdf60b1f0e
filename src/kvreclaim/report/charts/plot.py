"""The two ways to draw rows: as lines over a number, and as labelled rows of bars and dots.

Every chart has the parameters `hidden` (keys of the series not drawn) and `ink` (a colour for every series), so that
the page can hide a series and change colours without touching the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import polars as pl

from kvreclaim.report.charts.rows import label
from kvreclaim.report.section import Width
from kvreclaim.report.theme import SERIES, Theme

Scale = Literal["linear", "log"]
_ROW_HEIGHT = 48


@dataclass(frozen=True)
class Axis:
    """A number's axis: title in words with the unit, scale, domain and ticks."""

    title: str
    scale: Scale = "linear"
    domain: tuple[float, float] | None = None
    ticks: tuple[float, ...] | None = None
    format: str = "~g"

    def axis(self) -> alt.Axis:
        """Altair's axis."""
        few = {} if self.ticks is None else {"values": list(self.ticks)}
        return alt.Axis(title=self.title, format=self.format, tickCount=6, labelOverlap=True, **few)

    def to_scale(self) -> alt.Scale:
        """Altair's scale."""
        limits = {} if self.domain is None else {"domain": list(self.domain)}
        return alt.Scale(type=self.scale, nice=self.domain is None, zero=self.scale == "linear", **limits)


def lines(
    rows: pl.DataFrame, x: Axis, y: Axis, width: Width, theme: Theme, *, x_name: str, y_name: str, height: int = 300
) -> alt.LayerChart:
    """Draw series over a number, with bars of one standard deviation and hollow diamonds for closed forms.

    Parameters
    ----------
    rows
        Drawn rows (see `rows.drawn`).
    x, y
        The axes; a logarithmic y shows only what lies in its domain.
    width
        Pixels, or "container".
    theme
        Colours.
    x_name, y_name
        What a pointer calls the two numbers.
    height
        Pixels.
    """
    if y.scale == "log" and y.domain is not None:
        floor = y.domain[0]
        rows = rows.filter(pl.col("mean") >= floor).with_columns(pl.col("low").clip(floor))
    at_x = alt.X("x:Q", axis=x.axis(), scale=x.to_scale())
    at_y = alt.Y("mean:Q", axis=y.axis(), scale=y.to_scale())
    base = alt.Chart().encode(x=at_x, color=_colour(rows, theme))
    hover = alt.selection_point(name="nearest", on="pointerover", nearest=True, clear="pointerout", empty=False)
    roles = set(rows["role"])
    layers: list[alt.Chart] = []
    if roles & {"curve", "line", "reference"}:
        line = base.mark_line(clip=True).encode(y=at_y, strokeDash=_dash(rows), detail="role:N")
        layers.append(line.transform_filter("datum.role != 'mark' && datum.role != 'dot'"))
    if (rows["high"] > rows["mean"]).any():
        error = base.mark_rule(clip=True, style="error").encode(y=alt.Y("low:Q"), y2="high:Q")
        layers.append(error.transform_filter("datum.high > datum.mean"))
    if roles & {"line", "dot"}:
        points = base.mark_point(filled=True, opacity=1, size=52).encode(y=at_y, shape=_shape(rows))
        layers.append(points.transform_filter("datum.role == 'line' || datum.role == 'dot'"))
    if "mark" in roles:
        marks = base.mark_point(style="closed-form", opacity=1).encode(y=at_y, color=alt.Undefined)
        layers.append(marks.transform_filter("datum.role == 'mark'"))
    near = base.mark_point(filled=True, size=130, clip=True).encode(
        y=at_y,
        opacity=alt.condition(hover, alt.value(0.35), alt.value(0)),
        tooltip=_tooltip(y_name, x_name),
    )
    layers.append(near.add_params(hover))
    return _finish(layers, rows, width, height, theme, f"{y_name} over {x_name.lower()}")


def labelled_rows(
    rows: pl.DataFrame, x: Axis, width: Width, theme: Theme, *, x_name: str, reference: float | None = None
) -> alt.LayerChart:
    """Draw one row a group: its label and value in words, below them bars, dots and closed forms.

    Parameters
    ----------
    rows
        Drawn rows; those with equal `row` share a row, bars reach from `start` to `mean`.
    x
        The axis.
    width
        Pixels, or "container".
    theme
        Colours.
    x_name
        What a pointer calls the number.
    reference
        Where to draw a dashed line, labelled "logical saving".
    """
    groups = list(dict.fromkeys(rows["row"]))
    at_row = alt.Y("row:N", sort=groups, axis=None, scale=alt.Scale(domain=groups, paddingInner=0, paddingOuter=0))
    at_x = alt.X("mean:Q", axis=x.axis(), scale=x.to_scale())
    colour = _colour(rows, theme, legend=rows["series"].n_unique() > 1 and set(rows["label"]) != set(groups))
    base = alt.Chart().encode(y=at_row)
    words = base.transform_aggregate(value="min(row_value)", groupby=["row"])
    below, above = 10, -11
    layers: list[alt.Chart] = [
        base.mark_bar(style="row-track", size=14, yOffset=below, tooltip=None).encode(x=alt.value(0), x2=alt.value("width")),
        words.mark_text(style="row-label", align="left", yOffset=above, limit=210).encode(x=alt.value(0), text="row:N"),
        words.mark_text(style="row-value", align="right", yOffset=above).encode(x=alt.value("width"), text="value:N"),
    ]
    roles = set(rows["role"])
    tooltip = _tooltip(x_name)
    if "bar" in roles:
        bars = base.mark_bar(size=14, yOffset=below, clip=True)
        layers.append(
            bars.encode(x=at_x.copy(), x2="start:Q", color=colour, tooltip=tooltip).transform_filter("datum.role == 'bar'")
        )
    if (rows["high"] > rows["mean"]).any():
        error = base.mark_rule(clip=True, style="error-on-bar", yOffset=below).encode(x=alt.X("low:Q"), x2="high:Q")
        layers.append(error.transform_filter("datum.high > datum.mean"))
    if "dot" in roles:
        dots = base.mark_point(filled=True, opacity=1, size=95, yOffset=below).encode(
            x=at_x, color=colour, shape=_shape(rows), tooltip=tooltip
        )
        layers.append(dots.transform_filter("datum.role == 'dot'"))
    if reference is not None:
        rule = alt.Chart().mark_rule(style="reference").encode(x=alt.datum(reference))
        text = alt.Chart().mark_text(style="reference-text", dy=-8, align="right", dx=4).encode(
            x=alt.datum(reference), y=alt.value(0), text=alt.value(f"logical saving {reference:g}")
        )
        layers += [rule, text]
    if "mark" in roles:
        marks = base.mark_point(style="closed-form", opacity=1, yOffset=below).encode(x=at_x, tooltip=tooltip)
        layers.append(marks.transform_filter("datum.role == 'mark'"))
    return _finish(layers, rows, width, _ROW_HEIGHT * len(groups), theme, x_name)


def _finish(
    layers: list[alt.Chart], rows: pl.DataFrame, width: Width, height: int, theme: Theme, description: str
) -> alt.LayerChart:
    hidden = alt.param(name="hidden", value=[])
    ink = alt.param(name="ink", value={key: theme.ink[key] for key in _keys(rows) if key in theme.ink})
    chart = alt.layer(*layers, data=rows).transform_filter("indexof(hidden, datum.series) < 0")
    fit: Any = alt.AutoSizeParams(type="fit-x" if width == "container" else "pad", contains="padding")
    return chart.add_params(hidden, ink).properties(width=width, height=height, autosize=fit, description=description)


def _keys(rows: pl.DataFrame) -> list[str]:
    return list(dict.fromkeys(rows["series"]))


def _domain(rows: pl.DataFrame) -> list[str]:
    return [label(key) for key in _keys(rows)]


def _colour(rows: pl.DataFrame, theme: Theme, *, legend: bool = True) -> alt.Color:
    shades: list[Any] = [
        alt.expr(f"ink['{key}']") if key in theme.ink else "#7a8290" for key in _keys(rows)
    ]
    shown: Any = alt.Undefined if legend else None
    return alt.Color("label:N", title=None, legend=shown, scale=alt.Scale(domain=_domain(rows), range=shades))


def _shape(rows: pl.DataFrame) -> alt.Shape:
    shapes = [SERIES[key].shape if key in SERIES else "circle" for key in _keys(rows)]
    return alt.Shape("label:N", title=None, legend=None, scale=alt.Scale(domain=_domain(rows), range=shapes))


def _dash(rows: pl.DataFrame) -> alt.StrokeDash:
    dashes = [list(SERIES[key].dash) or [1, 0] for key in _keys(rows)]
    return alt.StrokeDash("label:N", title=None, legend=None, scale=alt.Scale(domain=_domain(rows), range=dashes))


def _tooltip(value_name: str, x_name: str | None = None) -> list[alt.Tooltip]:
    at_x = [] if x_name is None else [alt.Tooltip("x_text:N", title=x_name)]
    return [
        alt.Tooltip("label:N", title="Series"),
        *at_x,
        alt.Tooltip("value:N", title=value_name),
        alt.Tooltip("kind:N", title="Kind"),
        alt.Tooltip("n:N", title="n"),
    ]
