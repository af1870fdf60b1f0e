"""Tidy rows made ready to draw: labels, bars of one standard deviation, and the texts that a pointer shows.

A drawn row has a role: ``curve`` (a line), ``line`` (a line with its points), ``bar``, ``dot``, ``mark`` (a
hollow diamond: a closed form beside simulated points) or ``none`` (words alone).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from kvreclaim.report.theme import look
from kvreclaim.report.wording import number, with_spread


def label(series: str) -> str:
    """Return a series' name in words; an unknown series is called by its key."""
    return look(series).label


def drawn(
    table: pl.DataFrame,
    role: str,
    x_text: Callable[[float], str] = number,
    value_text: Callable[[float | None, float | None], str] = with_spread,
) -> pl.DataFrame:
    """Return tidy rows as drawn rows.

    Parameters
    ----------
    table
        Rows with columns policy, x, mean, std, n and kind; a text in a column `remark` stands for the mean
        where a row is named, and beside it elsewhere.
    role
        How they are drawn.
    x_text
        What a pointer shows for x.
    value_text
        What it shows for a mean and its standard deviation (None: a closed form, which has none).

    Returns
    -------
    pl.DataFrame
        Columns series, label, row, row_value, x, x_text, start, mean, low, high, value, kind, n, role.
    """
    spread = [
        None if kind.startswith("closed form") else std for kind, std in table.select("kind", "std").rows()
    ]
    values = [value_text(mean, std) for mean, std in zip(table["mean"], spread, strict=True)]
    half = pl.Series([std or 0.0 for std in spread], dtype=pl.Float64)
    mean = table["mean"].cast(pl.Float64)
    remark = table["remark"].to_list() if "remark" in table.columns else [None] * table.height
    labels = [label(series) for series in table["policy"]]
    return pl.DataFrame(
        {
            "series": table["policy"],
            "label": labels,
            "row": labels,
            "row_value": [few or value for few, value in zip(remark, values, strict=True)],
            "x": table["x"].cast(pl.Float64),
            "x_text": [x_text(x) for x in table["x"]],
            "start": [0.0] * table.height,
            "mean": mean,
            "low": mean - half,
            "high": mean + half,
            "value": [
                f"{value} ({few})" if few else value for few, value in zip(remark, values, strict=True)
            ],
            "kind": table["kind"],
            "n": [
                "–" if kind.startswith("closed form") or n is None else number(n)
                for kind, n in table.select("kind", "n").rows()
            ],
            "role": [role] * table.height,
        }
    )


def with_marks(table: pl.DataFrame, role: str) -> pl.DataFrame:
    """Return simulated rows drawn in a role, and closed forms as hollow diamonds."""
    closed = pl.col("kind").str.starts_with("closed form")
    return pl.concat([drawn(table.filter(~closed), role), drawn(table.filter(closed), "mark")])


def line_of(series: str, x: pl.Series, mean: pl.Series) -> pl.DataFrame:
    """Return a closed form to compare with, such as the logical saving, as a curve."""
    constants = {"std": 0.0, "n": 1, "kind": "closed form"}
    return drawn(pl.DataFrame({"policy": series, "x": x, "mean": mean, **constants}), "curve")


def only(table: pl.DataFrame, policies: Sequence[str], kind: str | None = None) -> pl.DataFrame:
    """Return the rows of the given policies, in their order (and of one kind)."""
    wanted = pl.DataFrame({"policy": list(policies), "place": range(len(policies))})
    found = table.join(wanted, on="policy").sort("place", "x", maintain_order=True).drop("place")
    return found if kind is None else found.filter(pl.col("kind") == kind)
