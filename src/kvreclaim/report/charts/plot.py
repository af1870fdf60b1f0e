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
_CLOSED_FORM: dict[str, Any] = {
    "shape": "diamond",
    "strokeWidth": 1.6,
    "stroke": alt.expr("ink.text"),
    "fill": alt.expr("ink.surface"),
    "opacity": 1,
}


@dataclass(frozen=True)
class Axis:
    """A number's axis: title in words with the unit, scale, domain and ticks."""

    title: str
    scale: Scale = "linear"
    domain: tuple[float, float] | None = None
    ticks: tuple[float, ...] | None = None

    def axis(self) -> alt.Axis:
        """Altair's axis."""
        if self.ticks is None:
            return alt.Axis(title=self.title, tickCount=6, labelOverlap=True)
        return alt.Axis(title=self.title, values=list(self.ticks), labelOverlap=False)

    def to_scale(self) -> alt.Scale:
        """Altair's scale."""
        limits: Any = alt.Undefined if self.domain is None else list(self.domain)
        return alt.Scale(type=self.scale, nice=self.domain is None, domain=limits)


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
    base = alt.Chart().encode(x=at_x)
    coloured = base.encode(color=_colour(rows, theme))
    roles = set(rows["role"])
    layers: list[alt.Chart] = []
    if roles & {"curve", "line", "reference"}:
        line = coloured.mark_line(clip=True).encode(y=at_y, strokeDash=_dash(rows), detail="role:N")
        layers.append(line.transform_filter("datum.role != 'mark' && datum.role != 'dot'"))
    if (rows["high"] > rows["mean"]).any():
        error = coloured.mark_rule(clip=True, style="error").encode(y=alt.Y("low:Q"), y2="high:Q")
        layers.append(error.transform_filter("datum.high > datum.mean"))
    if "left" in rows.columns:
        across = coloured.mark_rule(clip=True, style="error").encode(x=alt.X("left:Q"), x2="right:Q", y=at_y)
        layers.append(across.transform_filter("datum.right > datum.left"))
    if roles & {"line", "dot"}:
        points = coloured.mark_point(filled=True, opacity=1, size=120 if "dot" in roles else 52).encode(y=at_y, shape=_shape(rows))
        layers.append(points.transform_filter("datum.role == 'line' || datum.role == 'dot'"))
    if "mark" in roles:
        marks = base.mark_point(**_CLOSED_FORM, size=30).encode(y=at_y)
        layers.append(marks.transform_filter("datum.role == 'mark'"))
    if theme.interactive:
        layers.append(_nearest(coloured.encode(y=at_y), _tooltip(y_name, x_name)))
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
    named = set(rows["label"]) != set(groups)  # rows that are named by their label need no legend
    colour, shape = _colour(rows, theme, legend=named), _shape(rows, legend=named)
    base = alt.Chart().encode(y=at_row)
    words = base.transform_filter("datum.role != 'mark'").transform_aggregate(value="min(row_value)", groupby=["row"])
    below, above = 10, -11
    layers: list[alt.Chart] = [
        words.mark_bar(color=alt.expr("ink.track"), size=14, yOffset=below).encode(x=alt.value(0), x2=alt.value("width")),
        words.mark_text(style="row-label", color=alt.expr("ink.text"), align="left", yOffset=above, limit=210).encode(x=alt.value(0), text="row:N"),
        words.mark_text(style="row-value", color=alt.expr("ink.quiet"), align="right", yOffset=above).encode(x=alt.value("width"), text="value:N"),
    ]
    roles = set(rows["role"])
    tooltip = _tooltip(x_name)
    if "bar" in roles:
        filled = base.transform_filter("datum.role == 'bar'").encode(tooltip=tooltip)
        bar = {"size": 14, "yOffset": below, "clip": True}
        if theme.interactive:  # an empty bar has no area to point at: the whole row answers
            layers.append(filled.mark_bar(size=40, opacity=0).encode(x=alt.value(0), x2=alt.value("width")))
        layers.append(filled.mark_bar(**bar).encode(x=at_x, x2="start:Q", color=colour))
    if (rows["high"] > rows["mean"]).any():
        error = base.encode(x=alt.X("low:Q"), x2="high:Q").transform_filter("datum.high > datum.mean")
        halo = {"clip": True, "yOffset": below}
        layers.append(error.mark_rule(**halo, color=alt.expr("ink.surface"), strokeWidth=4))
        layers.append(error.mark_rule(**halo, color=alt.expr("ink.text"), strokeWidth=1.5))
    if "dot" in roles:
        dots = base.mark_point(
            opacity=1, filled=True, yOffset=below, stroke=alt.expr("ink.surface"), strokeWidth=1.2
        ).encode(x=at_x, color=colour, shape=shape, size=_size(rows, legend=named), tooltip=tooltip)
        layers.append(dots.transform_filter("datum.role == 'dot'"))
    if reference is not None:
        tick = words.mark_tick(color=alt.expr("ink.text"), thickness=2, size=26, yOffset=below)
        layers += [tick.encode(x=alt.datum(reference)), _reference_name(reference)]
    if "mark" in roles:
        marks = base.mark_point(**_CLOSED_FORM, size=60, yOffset=below).encode(x=at_x, tooltip=tooltip)
        layers.append(marks.transform_filter("datum.role == 'mark'"))
    return _finish(layers, rows, width, _ROW_HEIGHT * len(groups), theme, x_name)


def _nearest(base: alt.Chart, tooltip: list[alt.Tooltip]) -> alt.Chart:
    """Return points that show only under the pointer, and answer it from anywhere near them."""
    near = alt.selection_point(name="nearest", on="pointerover", nearest=True, clear="pointerout", empty=False)
    shown = alt.condition(near, alt.value(0.35), alt.value(0))
    points = base.mark_point(filled=True, size=130, clip=True)
    return points.encode(opacity=shown, tooltip=tooltip).add_params(near)


def _reference_name(value: float) -> alt.Chart:
    one = alt.Chart(alt.Data(values=[{}]))  # data of its own: drawn once, not once a row
    return one.mark_text(style="row-value", color=alt.expr("ink.quiet"), fontSize=11, dy=-8, align="right").encode(
        x=alt.datum(value), y=alt.value(0), text=alt.value(f"logical saving {value:g} ↓")
    )


def _finish(
    layers: list[alt.Chart], rows: pl.DataFrame, width: Width, height: int, theme: Theme, description: str
) -> alt.LayerChart:
    hidden = alt.param(name="hidden", value=[])
    used = ("text", "quiet", "track", "surface", *_keys(rows))
    ink = alt.param(name="ink", value={key: theme.ink[key] for key in used if key in theme.ink})
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


def _shape(rows: pl.DataFrame, *, legend: bool = True) -> alt.Shape:
    shapes = [SERIES[key].shape if key in SERIES else "circle" for key in _keys(rows)]
    shown: Any = alt.Undefined if legend else None
    return alt.Shape("label:N", title=None, legend=shown, scale=alt.Scale(domain=_domain(rows), range=shapes))


def _size(rows: pl.DataFrame, *, legend: bool) -> alt.Size:
    """Return point sizes that shrink from series to series, so that equal values lie in each other, all in sight."""
    sizes = [max(40, 210 - 75 * place) for place in range(len(_keys(rows)))]
    shown: Any = alt.Undefined if legend else None
    return alt.Size("label:O", sort=_domain(rows), title=None, legend=shown, scale=alt.Scale(domain=_domain(rows), range=sizes))


def _dash(rows: pl.DataFrame) -> alt.StrokeDash:
    dashes = [list(SERIES[key].dash) or [1, 0] for key in _keys(rows)]
    return alt.StrokeDash("label:N", title=None, scale=alt.Scale(domain=_domain(rows), range=dashes))


def _tooltip(value_name: str, x_name: str | None = None) -> list[alt.Tooltip]:
    at_x = [] if x_name is None else [alt.Tooltip("x_text:N", title=x_name)]
    return [
        alt.Tooltip("label:N", title="Series"),
        *at_x,
        alt.Tooltip("value:N", title=value_name),
        alt.Tooltip("kind:N", title="Kind"),
        alt.Tooltip("n:N", title="n"),
    ]
