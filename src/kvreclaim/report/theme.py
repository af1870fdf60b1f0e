"""Colours, marks and Vega configuration: one look for the static figures and the page, light and dark.

A series has one colour a theme everywhere. Series that meet in one chart stay apart for readers with deuteranopia,
protanopia or tritanopia and stand out from the background (a test computes both); points also differ by shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Series:
    """How a series looks: its name in words, its colour on light and on dark, its point shape, its dash."""

    label: str
    light: str
    dark: str
    shape: str = "circle"
    dash: tuple[int, ...] = ()


SERIES: Mapping[str, Series] = {
    # policies
    "random": Series("Random", "#6c7080", "#b4b6ba", "circle"),
    "lowest-importance": Series("Lowest importance", "#d6720f", "#e2501f", "square"),
    "block-wise": Series("Block-wise", "#1b86ea", "#4aa8fb", "diamond"),
    "reclaimability-aware": Series("Reclaimability-aware", "#0a5a38", "#1f9187", "triangle-up"),
    "streaming-llm": Series("StreamingLLM", "#2c22b8", "#5a72ff", "square"),
    "snapkv": Series("SnapKV", "#c98408", "#f8d252", "triangle-up"),
    "h2o": Series("H2O", "#840f42", "#e0246c", "diamond"),
    "random+compaction": Series("Random + compaction", "#7414a0", "#9b57e6", "cross", (6, 3)),
    "clustered-hole": Series("One clustered hole", "#c98408", "#c27c1c", "triangle-up"),
    # references
    "naive": Series("Logical expectation", "#1d2430", "#e6e9ee", "stroke", (2, 3)),
    "logical-saving": Series("Logical saving", "#1d2430", "#e6e9ee", "stroke", (5, 4)),
    "minimum-loss": Series("Minimum-loss frontier", "#1d2430", "#e6e9ee", "stroke", (5, 4)),
    "gap": Series("Gap between the two", "#6c7080", "#b4b6ba", "circle", (2, 3)),
    # block sizes, from light to dark as blocks grow
    "B=4": Series("B = 4", "#b77528", "#fcdb9a"),
    "B=8": Series("B = 8", "#a42013", "#e9a982"),
    "B=16": Series("B = 16", "#722449", "#f17aa7"),
    "B=32": Series("B = 32", "#44187b", "#a178ca"),
    "B=64": Series("B = 64", "#090f4e", "#5b62ce"),
    # where free blocks come from
    "at-eviction": Series("Free at eviction, no copy", "#1b86ea", "#4aa8fb"),
    "by-compaction": Series("Freed by compaction", "#c98408", "#f8d252"),
    "by-packing": Series("Freed by packing each head", "#0a5a38", "#1f9187", "triangle-up"),
    # statistics of a ratio
    "ratio-mean": Series("Mean of the runs' ratios", "#1b86ea", "#4aa8fb", "circle"),
    "ratio-of-means": Series("Ratio of the means", "#d6720f", "#e2501f", "diamond"),
    "total-ratio": Series("Credited with blocks already free", "#6c7080", "#b4b6ba", "square"),
    # block tables
    "per_head": Series("One table a head", "#c98408", "#f8d252", "triangle-up"),
    "per_layer": Series("One table a layer", "#840f42", "#e0246c", "square"),
    "shared": Series("One shared table", "#1b86ea", "#4aa8fb", "circle"),
}


@dataclass(frozen=True)
class Theme:
    """A Vega configuration and a colour for every series."""

    name: str
    background: str
    config: Mapping[str, Any]
    ink: Mapping[str, str]


def _config(text: str, quiet: str, grid: str, surface: str, font: str) -> dict[str, Any]:
    """Vega-Lite configuration: quiet axes, one font, named styles for the marks that carry no series."""
    words = {"labelFont": font, "titleFont": font, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "font": font,
        "view": {"stroke": None},
        "axis": {
            **words,
            "labelColor": quiet,
            "titleColor": text,
            "titleFontWeight": 500,
            "titlePadding": 10,
            "labelPadding": 6,
            "gridColor": grid,
            "domain": False,
            "ticks": False,
        },
        "axisX": {"domain": True, "domainColor": quiet, "ticks": True, "tickColor": quiet, "tickSize": 4, "grid": False},
        "legend": {
            **words,
            "labelColor": text,
            "titleColor": text,
            "orient": "top",
            "title": None,
            "columns": 3,
            "symbolStrokeWidth": 2,
            "labelLimit": 220,
        },
        "style": {
            "reference": {"stroke": quiet, "strokeWidth": 1.5, "strokeDash": [5, 4]},
            "reference-text": {"fill": quiet, "fontSize": 11, "font": font},
            "row-label": {"fill": text, "fontSize": 12.5, "fontWeight": 500, "font": font},
            "row-value": {"fill": quiet, "fontSize": 12, "font": font},
            "row-track": {"fill": grid, "opacity": 0.55},
            "error": {"strokeWidth": 1.6},
            "error-on-bar": {"stroke": text, "strokeWidth": 1.4},
            "closed-form": {"stroke": text, "fill": surface, "strokeWidth": 1.6, "size": 62, "shape": "diamond"},
        },
        "line": {"strokeWidth": 2.2, "strokeCap": "round", "strokeJoin": "round"},
    }


_PAGE_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_STATIC_FONT = "Liberation Sans, Arial, sans-serif"  # vl-convert ships it, so figures are equal everywhere

LIGHT = Theme(
    "light",
    "#ffffff",
    _config("#1d2430", "#5c6675", "#e4e8ee", "#ffffff", _PAGE_FONT),
    {key: series.light for key, series in SERIES.items()},
)
DARK = Theme(
    "dark",
    "#171b22",
    _config("#e6e9ee", "#a0a9b6", "#2c333e", "#171b22", _PAGE_FONT),
    {key: series.dark for key, series in SERIES.items()},
)
STATIC = Theme(
    "static",
    "#ffffff",
    _config("#1d2430", "#5c6675", "#e4e8ee", "#ffffff", _STATIC_FONT),
    {key: series.light for key, series in SERIES.items()},
)
