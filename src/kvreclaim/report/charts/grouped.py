"""Rows of several thin bars, each with its interval, under one line of words."""

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
    columns,
    spoken,
)
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme

_WORDS, _LANE, _BAR, _GAP = 22, 11, 8, 12  # pixels: line of words, pitch and size of the bars, below them
_LABEL_WIDTH = 170


def grouped_rows(rows: pl.DataFrame, x: Axis, width: Width, theme: Theme, *, x_name: str) -> alt.LayerChart:
    """Draw one row a group: its label and words, below them one bar a series, from 0 to its value.

    Parameters
    ----------
    rows
        Drawn rows (see `rows.drawn`), each group with every series once; `low` and `high` end its interval.
    x
        The axis.
    width
        Pixels, or "container".
    theme
        Colours.
    x_name
        What a pointer calls the number.
    """
    groups, series = (list(dict.fromkeys(rows[column])) for column in ("row", "series"))
    pitch = _WORDS + _LANE * len(series) + _GAP
    top = pl.col("row").replace_strict({group: pitch * place for place, group in enumerate(groups)})
    lane = pl.col("series").replace_strict({key: _LANE * place for place, key in enumerate(series)})
    rows = rows.with_columns(words_at=top + _WORDS / 2, bar_at=top + _WORDS + lane + _LANE / 2)
    height = pitch * len(groups)
    pixels = alt.Scale(domain=[height, 0])
    encodings = Encodings(rows, theme)
    shown = [("Policy", "row"), *columns(x_name)]
    at_x = alt.X("mean:Q", axis=x.axis(), scale=x.to_scale())
    base = alt.Chart().encode(y=alt.Y("bar_at:Q", axis=None, scale=pixels))
    pointed = base.encode(tooltip=[alt.Tooltip(f"{field}:N", title=title) for title, field in shown])
    left, right = alt.XValue(0), alt.X2Value("width")
    track = base.mark_rule(aria=False, color=TRACK, strokeWidth=1.5).encode(x=left, x2=right)
    bars = pointed.mark_bar(orient="horizontal", size=_BAR, clip=True, description=spoken(shown))
    layers = [*_words(pixels), track, bars.encode(x=at_x, x2="start:Q", color=encodings.colour())]
    ends = pointed.mark_tick(
        aria=False, orient="vertical", size=_BAR, thickness=2
    )  # a bar of 0 is seen by its end
    layers += [ends.encode(x=at_x, color=encodings.colour()), *_intervals(base)]
    if theme.interactive:  # the whole lane answers a pointer, as an empty bar has no area to point at
        lanes = pointed.mark_bar(aria=False, orient="horizontal", size=_LANE, opacity=0)
        layers.append(lanes.encode(x=left, x2=right))
    return assemble(layers, rows, theme, (width, height), shown, x_name)


def _words(pixels: alt.Scale) -> list[alt.Chart]:
    """Return what stands once a row: its label on the left, its words on the right."""
    once = alt.Chart().transform_aggregate(value="min(row_value)", at="min(words_at)", groupby=["row"])
    once = once.encode(y=alt.Y("at:Q", axis=None, scale=pixels))
    name = once.mark_text(
        description=alt.expr("datum.row"), style="row-label", color=TEXT, align="left", limit=_LABEL_WIDTH
    )
    value = once.mark_text(description=alt.expr("datum.value"), style="row-value", color=QUIET, align="right")
    return [
        name.encode(x=alt.XValue(0), text="row:N"),
        value.encode(x=alt.XValue("width"), text="value:N"),
    ]


def _intervals(base: alt.Chart) -> list[alt.Chart]:
    """Return the intervals, with a halo that sets them off from the bar below."""
    spread = base.encode(x=alt.X("low:Q"), x2="high:Q").transform_filter("datum.high > datum.low")
    return [
        spread.mark_rule(aria=False, clip=True, color=SURFACE, strokeWidth=3),
        spread.mark_rule(aria=False, clip=True, color=TEXT, strokeWidth=1.2),
    ]
