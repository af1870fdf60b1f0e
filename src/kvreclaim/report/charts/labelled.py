"""Rows with their words above their bars and dots: readable at any width, nothing to clip."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.plot import (
    QUIET,
    SURFACE,
    TEXT,
    TRACK,
    Axis,
    Encodings,
    assemble,
    closed_form,
    columns,
    spoken,
)
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme

_ROW_HEIGHT = 48
_BAR = 14
_ABOVE, _BELOW = -11, 10  # offsets of the words and of the bar from the middle of a row
_LABEL_WIDTH = 210


def labelled_rows(
    rows: pl.DataFrame, x: Axis, width: Width, theme: Theme, *, x_name: str, reference: float | None = None
) -> alt.LayerChart:
    """Draw one row a group: its label and value in words, below them bars, dots and closed forms.

    Parameters
    ----------
    rows
        Drawn rows (see `rows.drawn`); those with equal `row` share a row, bars reach from `start` to `mean`.
    x
        The axis.
    width
        Pixels, or "container".
    theme
        Colours.
    x_name
        What a pointer calls the number.
    reference
        Where to draw a tick in every row, named "logical saving".
    """
    groups = list(dict.fromkeys(rows["row"]))
    # Rows that are named by their series need no legend, and no name besides.
    named = set(rows["label"]) == set(groups)
    encodings = Encodings(rows, theme, legend=not named)
    shown = [*([] if named else [("Policy", "row")]), *columns(x_name)]
    at_x = alt.X("mean:Q", axis=x.axis(), scale=x.to_scale())
    places = alt.Scale(domain=groups, paddingInner=0, paddingOuter=0)
    base = alt.Chart().encode(y=alt.Y("row:N", sort=groups, axis=None, scale=places))
    pointed = base.encode(tooltip=[alt.Tooltip(f"{field}:N", title=title) for title, field in shown])
    roles = set(rows["role"])
    description = spoken(shown)
    layers = _words(base, reference)
    if "bar" in roles:
        layers += _bars(pointed, at_x, encodings.colour(), description, interactive=theme.interactive)
    if (rows["high"] > rows["mean"]).any():
        layers += _deviations(base)
    if "dot" in roles:
        dots = pointed.mark_point(
            opacity=1, filled=True, yOffset=_BELOW, stroke=SURFACE, strokeWidth=1, description=description
        ).encode(x=at_x, color=encodings.colour(), shape=encodings.shape(), size=encodings.size())
        layers.append(dots.transform_filter("datum.role == 'dot'"))
    if "mark" in roles:
        layers.append(closed_form(pointed.encode(x=at_x), size=60, offset=_BELOW))
    return assemble(layers, rows, theme, (width, _ROW_HEIGHT * len(groups)), shown, x_name)


def _words(base: alt.Chart, reference: float | None) -> list[alt.Chart]:
    """Return what stands once a row: the track, the label, the value and the reference's tick."""
    once = base.transform_filter("datum.role != 'mark'")
    once = once.transform_aggregate(value="min(row_value)", groupby=["row"])
    left, right = alt.XValue(0), alt.X2Value("width")
    track = once.mark_bar(aria=False, color=TRACK, size=_BAR, yOffset=_BELOW).encode(x=left, x2=right)
    name = once.mark_text(
        description=alt.expr("datum.row"),
        style="row-label",
        color=TEXT,
        align="left",
        yOffset=_ABOVE,
        limit=_LABEL_WIDTH,
    )
    value = once.mark_text(
        description=alt.expr("datum.value"), style="row-value", color=QUIET, align="right", yOffset=_ABOVE
    )
    layers = [track, name.encode(x=left, text="row:N"), value.encode(x=alt.XValue("width"), text="value:N")]
    if reference is None:
        return layers
    tick = once.mark_tick(color=TEXT, thickness=2, size=26, yOffset=_BELOW).encode(x=alt.XDatum(reference))
    single = alt.Chart(alt.InlineData(values=[{}]))  # data of its own: drawn once, not once a row
    title = single.mark_text(style="row-value", color=QUIET, fontSize=11, dy=-8, align="right").encode(
        x=alt.XDatum(reference), y=alt.YValue(0), text=alt.TextValue(f"logical saving {reference:g} ↓")
    )
    return [*layers, tick, title]


def _bars(
    base: alt.Chart, at_x: alt.X, colour: alt.Color, description: alt.ExprRef, *, interactive: bool
) -> list[alt.Chart]:
    """Return the bars; for a pointer the whole row answers, as an empty bar has no area to point at."""
    bars = base.transform_filter("datum.role == 'bar'")
    drawn = bars.mark_bar(size=_BAR, yOffset=_BELOW, clip=True, description=description).encode(
        x=at_x, x2="start:Q", color=colour
    )
    if not interactive:
        return [drawn]
    row = bars.mark_bar(aria=False, size=_ROW_HEIGHT - 8, opacity=0)
    return [row.encode(x=alt.XValue(0), x2=alt.X2Value("width")), drawn]


def _deviations(base: alt.Chart) -> list[alt.Chart]:
    """Return bars of one standard deviation, with a halo that sets them off from the bar below."""
    spread = base.encode(x=alt.X("low:Q"), x2="high:Q").transform_filter("datum.high > datum.mean")
    return [
        spread.mark_rule(aria=False, clip=True, yOffset=_BELOW, color=SURFACE, strokeWidth=4),
        spread.mark_rule(aria=False, clip=True, yOffset=_BELOW, color=TEXT, strokeWidth=1.5),
    ]
