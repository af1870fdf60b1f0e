"""A map of pages: a cell a page, by what keeps it or lets it go."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.plot import TEXT, Encodings, assemble, spoken
from kvreclaim.report.charts.rows import drawn
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme

_ROW = 26
_SHOWN = [
    ("Policy", "row"),
    ("Page", "x_text"),
    ("Live blocks", "value"),
    ("State", "label"),
    ("Kind", "kind"),
]


def page_map(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw each policy's pages in their order.

    Parameters
    ----------
    table
        Columns of `rows.drawn`, the state as policy and the live blocks as mean; and `name`, the policy.
    width
        Pixels, or "container".
    theme
        Colours.
    """
    rows = drawn(table, "cell").with_columns(row=table["name"])
    names = list(dict.fromkeys(table["name"]))
    encodings = Encodings(rows, theme)
    at_y = alt.Y("row:N", sort=names, title=None, axis=alt.Axis(labelLimit=170, ticks=False, domain=False))
    cells = alt.Chart().mark_rect(stroke=TEXT, strokeWidth=0.4, description=spoken(_SHOWN))
    cells = cells.encode(
        x=alt.X("x:O", title="Page", axis=alt.Axis(labelOverlap=True)),
        y=at_y,
        color=encodings.colour(),
        tooltip=[alt.Tooltip(f"{field}:N", title=title) for title, field in _SHOWN],
    )
    return assemble([cells], rows, theme, (width, _ROW * len(names)), _SHOWN, "Pages, and what keeps them")
