"""Colours, marks and Vega configuration: one look for the static figures and the page, light and dark.

A series has one colour a theme everywhere. Series that meet in one chart stay apart for readers with
deuteranopia, protanopia or tritanopia and stand out from the background (a test computes both); points also
differ by shape. Policies measured on a model are too many for that: a family of them has one colour, and its
members differ by dash and shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32


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
    # families of measured policies: clusters of attention, attention so far or to come, keys alone, chunks
    "pyramidkv": Series("PyramidKV", "#c98408", "#f8d252", "cross", (7, 3)),
    "adakv:snapkv": Series("Ada-KV (SnapKV)", "#c98408", "#f8d252", "circle", (2, 3)),
    "observed-attention": Series("ObservedAttention", "#840f42", "#e0246c", "circle", (7, 3)),
    "tova": Series("TOVA", "#0a5a38", "#1f9187", "square", (2, 3)),
    "expected-attention": Series("ExpectedAttention", "#0a5a38", "#1f9187", "triangle-up", (9, 3, 2, 3)),
    "keydiff": Series("KeyDiff", "#7414a0", "#9b57e6", "cross", (7, 3)),
    "knorm": Series("Knorm", "#7414a0", "#9b57e6", "diamond", (2, 3)),
    "chunkkv:chunk_length=16:snapkv": Series("ChunkKV-16 (SnapKV)", "#1b86ea", "#4aa8fb", "square", (7, 3)),
    # remedies: one decision for all heads, that and swaps, some blocks packed, fewer bits
    "block-joint:expected-attention": Series(
        "Block-joint (ExpectedAttention)", "#1b86ea", "#4aa8fb", "circle"
    ),
    "block-joint:last-queries": Series("Block-joint (last queries)", "#1b86ea", "#4aa8fb", "diamond", (7, 3)),
    "block-joint:snapkv": Series("Block-joint (SnapKV, maxima)", "#1b86ea", "#4aa8fb", "square", (2, 3)),
    "block-swap:last-queries": Series("Block-joint + swaps", "#0a5a38", "#1f9187", "diamond", (9, 3)),
    "block-joint:heads=max:tokens=max:snapkv": Series(
        "Block-joint (SnapKV, maxima)", "#1b86ea", "#4aa8fb", "square", (2, 3)
    ),
    "block-swap:copies=0.01:last-queries": Series(
        "Block-joint + swaps of 1 %", "#0a5a38", "#1f9187", "cross", (2, 3)
    ),
    "last-queries": Series("Last queries", "#840f42", "#e0246c", "cross", (2, 3)),
    "blend:last-queries": Series("Blend (last queries)", "#840f42", "#e0246c", "triangle-up", (7, 3)),
    "paged-eviction": Series("PagedEviction", "#1b86ea", "#4aa8fb", "cross", (9, 3, 2, 3)),
    "fp8": Series("FP8 cache", "#7414a0", "#9b57e6", "cross", (1, 3)),
    "int8": Series("INT8 cache", "#7414a0", "#9b57e6", "square", (2, 3)),
    "copies-frontier": Series(
        "Beaten by no other in loss and copies", "#1d2430", "#e6e9ee", "stroke", (5, 4)
    ),
    "random+compaction": Series("Random + compaction", "#7414a0", "#9b57e6", "cross", (6, 3)),
    "clustered-hole": Series("One clustered hole", "#c98408", "#c27c1c", "triangle-up"),
    # references
    "naive": Series("Logical expectation", "#1d2430", "#e6e9ee", "stroke", (2, 3)),
    "logical-saving": Series("Logical saving", "#1d2430", "#e6e9ee", "stroke", (5, 4)),
    "minimum-loss": Series("Minimum-loss frontier", "#1d2430", "#e6e9ee", "stroke", (5, 4)),
    "gap": Series("Gap between the two", "#6c7080", "#b4b6ba", "circle", (2, 3)),
    # block sizes, from light to dark as blocks grow
    "B=4": Series("B = 4", "#b77528", "#fcdb9a", "stroke"),
    "B=8": Series("B = 8", "#a42013", "#e9a982", "stroke"),
    "B=16": Series("B = 16", "#722449", "#f17aa7", "stroke"),
    "B=32": Series("B = 32", "#44187b", "#a178ca", "stroke"),
    "B=64": Series("B = 64", "#090f4e", "#5b62ce", "stroke"),
    # where free blocks come from
    "at-eviction": Series("Free at eviction, no copy", "#1b86ea", "#4aa8fb"),
    "by-compaction": Series("Freed by compaction", "#c98408", "#f8d252"),
    "after-compaction": Series("After compaction", "#c98408", "#f8d252"),
    "by-packing": Series("After packing each head", "#0a5a38", "#1f9187", "triangle-up"),
    # needle trials
    "question-seen": Series("Question seen by the policy", "#1b86ea", "#4aa8fb"),
    "question-unseen": Series("Question unseen", "#c98408", "#f8d252"),
    # statistics of a ratio
    "ratio-mean": Series("Mean of the runs' ratios", "#1b86ea", "#4aa8fb", "circle"),
    "ratio-of-means": Series("Ratio of the means", "#d6720f", "#e2501f", "diamond"),
    "total-ratio": Series("Credited with blocks already free", "#6c7080", "#b4b6ba", "square"),
    # runs of a real runtime, and what was predicted of them
    "full-cache": Series("Full cache", "#6c7080", "#b4b6ba"),
    "evicted": Series("With eviction", "#1b86ea", "#4aa8fb"),
    "full-cache-predicted": Series("Full cache, predicted", "#1d2430", "#e6e9ee", "stroke", (2, 3)),
    "evicted-predicted": Series("With eviction, predicted", "#1d2430", "#e6e9ee", "stroke", (5, 4)),
    # under traffic
    "traffic-full": Series("Full cache", "#1d2430", "#e6e9ee", "stroke", (5, 4)),
    "as given": Series("As given", "#1b86ea", "#4aa8fb"),
    "per-head": Series("Each head its own", "#c98408", "#f8d252", "triangle-up"),
    # pages
    "page-returned": Series("Returned to the GPU", "#1b86ea", "#4aa8fb"),
    "page-pinned": Series("Held, some blocks free", "#c98408", "#f8d252"),
    "page-full": Series("Held, every block live", "#840f42", "#e0246c"),
    # block tables
    "per_head": Series("One table per head", "#c98408", "#f8d252", "triangle-up"),
    "per_layer": Series("One table per layer", "#840f42", "#e0246c", "square"),
    "shared": Series("One shared table", "#1b86ea", "#4aa8fb", "circle"),
}

_OTHER = "#7a8290"
_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross")
_DASHES: tuple[tuple[int, ...], ...] = ((), (7, 3), (2, 3))


def look(key: str) -> Series:
    """Return how a series looks; one without an entry is grey, and called by its key.

    Shape and dash of such a series follow from its key, so that they are the same in every chart.
    """
    if key in SERIES:
        return SERIES[key]
    dash, shape = divmod(crc32(key.encode()) % (len(_DASHES) * len(_SHAPES)), len(_SHAPES))
    return Series(key, _OTHER, _OTHER, _SHAPES[shape], _DASHES[dash])


@dataclass(frozen=True)
class Theme:
    """A Vega configuration, and the colours: of every series, and of text, quiet text, track and surface.

    An interactive theme has marks that only a pointer needs.
    """

    name: str
    config: Mapping[str, Any]
    ink: Mapping[str, str]
    interactive: bool = True


def _config(chrome: Mapping[str, str], font: str) -> dict[str, Any]:
    """Vega-Lite configuration: quiet axes, one font, named styles for the marks that carry no series."""
    text, quiet, grid = chrome["text"], chrome["quiet"], chrome["track"]
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
        "axisX": {
            "domain": True,
            "domainColor": quiet,
            "ticks": True,
            "tickColor": quiet,
            "tickSize": 4,
            "grid": False,
        },
        "legend": {
            **words,
            "labelColor": text,
            "titleColor": text,
            "orient": "top",
            "title": None,
            "columns": 3,
            "columnPadding": 26,
            "symbolStrokeWidth": 2,
            "labelLimit": 220,
        },
        "style": {
            "row-label": {"fontSize": 12.5, "fontWeight": 500, "font": font},
            "row-value": {"fontSize": 12, "font": font},
            "error": {"strokeWidth": 1.6},
        },
        "line": {"strokeWidth": 2.2, "strokeCap": "round", "strokeJoin": "round"},
    }


_PAGE_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_STATIC_FONT = "Liberation Sans, Arial, sans-serif"  # vl-convert ships it, so figures are equal everywhere
_LIGHT_CHROME = {"text": "#1d2430", "quiet": "#5c6675", "track": "#e6eaf0", "surface": "#ffffff"}
_DARK_CHROME = {"text": "#e6e9ee", "quiet": "#a0a9b6", "track": "#2c333e", "surface": "#171b22"}
_LIGHT_INK = {**_LIGHT_CHROME, **{key: series.light for key, series in SERIES.items()}}
_DARK_INK = {**_DARK_CHROME, **{key: series.dark for key, series in SERIES.items()}}

LIGHT = Theme("light", _config(_LIGHT_CHROME, _PAGE_FONT), _LIGHT_INK)
DARK = Theme("dark", _config(_DARK_CHROME, _PAGE_FONT), _DARK_INK)
STATIC = Theme("static", _config(_LIGHT_CHROME, _STATIC_FONT), _LIGHT_INK, interactive=False)
