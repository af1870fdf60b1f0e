"""Charts of compaction: where free blocks come from, what a move buys, how many moves it takes."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.labelled import labelled_rows
from kvreclaim.report.charts.plot import Axis, Scale
from kvreclaim.report.charts.rows import drawn, label, with_marks
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme
from kvreclaim.report.wording import mebibytes

SOURCES = {"free_at_eviction": "at-eviction", "free_by_compaction": "by-compaction"}
RATIOS = {
    "total_slots_per_move": "total-ratio",
    "slots_per_move_ratio_of_means": "ratio-of-means",
    "slots_per_move": "ratio-mean",
    "slots_per_move_upper_bound": "ratio-mean",
}


def sources(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw how many free blocks each pattern of holes has at eviction, and how many compaction adds.

    Parameters
    ----------
    table
        Rows of the metrics free_at_eviction and free_by_compaction, in blocks.
    width, theme
        As in `plot`.
    """
    parts = []
    for policy in table["policy"].unique(maintain_order=True):
        one = table.filter(pl.col("policy") == policy)
        counts = {row["metric"]: row for row in one.iter_rows(named=True)}
        first, second = (counts[metric] for metric in SOURCES)
        words = f"{first['mean']:.1f} + {second['mean']:.1f} blocks"
        for metric, start in ((first, 0.0), (second, first["mean"])):
            part = drawn(pl.DataFrame([{**metric, "policy": SOURCES[metric["metric"]]}]), "bar")
            end = start + metric["mean"]
            placed = {"start": start, "mean": end, "low": end, "high": end}
            parts.append(
                part.with_columns(
                    row=pl.lit(label(policy)),
                    row_value=pl.lit(words),
                    **{key: pl.lit(at) for key, at in placed.items()},
                )
            )
    return labelled_rows(
        pl.concat(parts), Axis("Free blocks", domain=(0, 300)), width, theme, x_name="Free blocks"
    )


def slots_per_move(table: pl.DataFrame, scale: Scale, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the token slots freed for each token moved, as three statistics that differ.

    Parameters
    ----------
    table
        Rows of the metrics in `RATIOS`; a pattern that needs no copy has none.
    scale
        Of the ratio.
    width, theme
        As in `plot`.
    """
    parts = []
    for policy in table["policy"].unique(maintain_order=True):
        one = table.filter(pl.col("policy") == policy).with_columns(
            policy=pl.col("metric").replace_strict(RATIOS)
        )
        rows = (
            with_marks(one, "dot")
            if one["mean"].is_finite().any()
            else drawn(one, "none").with_columns(value=pl.lit("no copy needed"))
        )
        mean_ratio = rows.filter(pl.col("series") == "ratio-mean", pl.col("role") == "dot")
        words = (
            "no copy needed: no ratio"
            if mean_ratio.is_empty()
            else f"{mean_ratio['value'][0]} slots per move"
        )
        parts.append(rows.with_columns(row=pl.lit(label(policy)), row_value=pl.lit(words)))
    rows = pl.concat(parts)
    top = 10 ** len(str(int(rows["high"].max() or 1)))  # type: ignore[arg-type]  # polars types a maximum loosely
    title = "Token slots freed per token moved"
    axis = Axis(title, "log", domain=(0.1, top)) if scale == "log" else Axis(title, domain=(0, top))
    rows = rows.with_columns(pl.col("low").clip(axis.domain[0] if axis.domain else 0.0))
    return labelled_rows(rows, axis, width, theme, x_name="Slots per move")


def moved_tokens(table: pl.DataFrame, scale: Scale, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the tokens moved to reach the fewest blocks, with their bytes in words.

    Parameters
    ----------
    table
        Rows of the metrics moved_tokens (and its lower bound) and moved_bytes.
    scale
        Of the moved tokens; on a logarithmic one, where a bar's length means nothing, they are dots, and a
        pattern that moves none has none.
    width, theme
        As in `plot`.
    """
    moves = table.filter(pl.col("metric").str.starts_with("moved_tokens"))
    token_bytes = _bytes_per_token(table)
    top = 10 ** len(str(int(moves["mean"].max() or 1)))  # type: ignore[arg-type]  # polars types a maximum loosely
    rows = with_marks(moves, "dot" if scale == "log" else "bar")
    sizes = [mebibytes(mean * token_bytes) for mean in rows["mean"]]
    tokens = [f"{mean:,.1f} tokens" for mean in rows["mean"]]
    rows = rows.with_columns(
        row_value=pl.Series([", ".join(words) for words in zip(tokens, sizes, strict=True)]),
        value=pl.Series([f"{value} ({size})" for value, size in zip(rows["value"], sizes, strict=True)]),
    )
    if scale == "log":
        axis = Axis("Tokens moved", "log", domain=(1, top))
        moved = pl.col("mean") > 0
        rows = rows.with_columns(
            pl.col("low").clip(1.0), role=pl.when(moved).then("role").otherwise(pl.lit("none"))
        )
    else:
        axis = Axis("Tokens moved", domain=(0, top / 5))
    return labelled_rows(rows, axis, width, theme, x_name="Tokens moved")


def _bytes_per_token(table: pl.DataFrame) -> float:
    """Return the bytes of one token, from the pattern that moves the most."""
    most = table.filter(metric="moved_tokens").sort("mean").row(-1, named=True)
    size = table.filter(metric="moved_bytes", policy=most["policy"])["mean"][0]
    return float(size / most["mean"]) if most["mean"] else 0.0
