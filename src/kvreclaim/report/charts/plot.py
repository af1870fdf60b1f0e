"""What every chart shares: axes, colours, shapes, and the parameters that the page turns.

Every chart has the parameters `hidden` (keys of the series not drawn) and `ink` (a colour for every series),
so that the page can hide a series and change colours without touching the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import polars as pl

from kvreclaim.report.charts.rows import label
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme, look

Scale = Literal["linear", "log"]
Columns = list[tuple[str, str]]

# Colours that follow the theme through the parameter `ink`.
TEXT, QUIET, TRACK, SURFACE = (alt.expr(f"ink.{name}") for name in ("text", "quiet", "track", "surface"))
_CHROME = ("text", "quiet", "track", "surface")


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
            return alt.Axis(title=self.title, tickCount=6, labelOverlap=True, labelFlush=False)
        return alt.Axis(
            title=self.title,
            values=list(self.ticks),
            tickCount=len(self.ticks),
            labelOverlap=False,
            labelFlush=False,
        )

    def share(self, value: float) -> float:
        """Return where a value lies on an axis with a domain, from 0 at its start to 1 at its end."""
        assert self.domain is not None  # noqa: S101  # whoever places something has one
        start, end, at = (math.log(one) if self.scale == "log" else one for one in (*self.domain, value))
        return (at - start) / (end - start)

    def to_scale(self) -> alt.Scale:
        """Altair's scale."""
        limits: Any = alt.Undefined if self.domain is None else list(self.domain)
        return alt.Scale(type=self.scale, nice=self.domain is None, domain=limits)


def log_axis(values: pl.Series, title: str) -> Axis:
    """Return a logarithmic axis for positive values, between a 1, 2 or 5 of two decades, ticks at tens."""
    least, most = float(values.min()), float(values.max())  # type: ignore[arg-type]  # polars types them loosely
    decades = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    steps = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    start = max(step for step in steps if step <= least)
    end = min(step for step in steps if step > most)
    inside = [step for step in steps if start <= step <= end]
    tens = [10.0**decade for decade in decades if start <= 10.0**decade <= end]
    return Axis(title, "log", domain=(start, end), ticks=tuple(tens if len(tens) > 2 else inside))


class Encodings:
    """Colour, shape, dash and size of the series in some rows.

    Parameters
    ----------
    rows
        Drawn rows (see `rows.drawn`).
    theme
        Colours.
    legend
        Whether the static figure names the series in a legend; the page has its own.
    """

    def __init__(self, rows: pl.DataFrame, theme: Theme, *, legend: bool = True) -> None:
        self.keys = list(dict.fromkeys(rows["series"]))
        self.domain = [label(key) for key in self.keys]
        self.theme = theme
        # Equal legends of several encodings merge into one; a single None would switch off all of them.
        self.legend: Any = alt.Undefined if legend else None

    def colour(self) -> alt.Color:
        """Each series in its colour of the parameter `ink`."""
        shades = [
            alt.expr(f"ink['{key}']") if key in self.theme.ink else look(key).light for key in self.keys
        ]
        return alt.Color("label:N", title=None, legend=self.legend, scale=self._scale(shades))

    def shape(self) -> alt.Shape:
        """Each series' points in its shape."""
        shapes = self._scale([look(key).shape for key in self.keys])
        return alt.Shape("label:N", title=None, legend=self.legend, scale=shapes)

    def dash(self) -> alt.StrokeDash:
        """Each series' line with its dash."""
        dashes = self._scale([list(look(key).dash) or [1, 0] for key in self.keys])
        return alt.StrokeDash("label:N", title=None, legend=self.legend, scale=dashes)

    def size(self) -> alt.Size:
        """Points that shrink from series to series: equal values lie in each other, all in sight."""
        sizes = [(330, 110, 46)[min(place, 2)] for place in range(len(self.keys))]
        return alt.Size("label:O", sort=self.domain, title=None, legend=self.legend, scale=self._scale(sizes))

    def _scale(self, values: Sequence[Any]) -> alt.Scale:
        return alt.Scale(domain=self.domain, range=list(values))


def closed_form(base: alt.Chart, size: int, offset: int = 0) -> alt.Chart:
    """Return hollow diamonds at the rows that are closed forms."""
    diamonds: alt.Chart = base.mark_point(
        shape="diamond", size=size, strokeWidth=1.6, stroke=TEXT, fill=SURFACE, opacity=1, yOffset=offset
    )
    return diamonds.transform_filter("datum.role == 'mark'")


def columns(value_name: str, x_name: str | None = None, also: Sequence[tuple[str, str]] = ()) -> Columns:
    """Return what is shown of a row, to a pointer and in the table of values: titles and fields."""
    at_x = [] if x_name is None else [(x_name, "x_text")]
    return [("Series", "label"), *at_x, (value_name, "value"), *also, ("Kind", "kind"), ("n", "n")]


def spoken(shown: Columns) -> alt.ExprRef:
    """Return what a screen reader says of a mark: the texts that a pointer shows."""
    return alt.expr(" + '; ' + ".join(f"'{title}: ' + datum.{field}" for title, field in shown))


def assemble(
    layers: Sequence[alt.Chart],
    rows: pl.DataFrame,
    theme: Theme,
    size: tuple[Width, int],
    shown: Columns,
    description: str,
) -> alt.LayerChart:
    """Return the layers as one chart over the rows, with its parameters, size, and columns for the table."""
    keys = [key for key in (*_CHROME, *dict.fromkeys(rows["series"])) if key in theme.ink]
    hidden = alt.VariableParameter(name="hidden", value=[])
    ink = alt.VariableParameter(name="ink", value={key: theme.ink[key] for key in keys})
    width, height = size
    return alt.LayerChart(
        data=rows,
        layer=list(layers),
        width=width,
        height=height,
        autosize=alt.AutoSizeParams(type="fit-x" if width == "container" else "pad", contains="padding"),
        description=description,
        usermeta={"columns": shown},
        transform=[alt.FilterTransform(filter="indexof(hidden, datum.series) < 0")],
        params=[hidden, ink],
    )
