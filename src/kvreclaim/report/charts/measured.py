"""Charts of policies measured on a real model: quality against memory, memory at equal quality, needles."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.advice import copies
from kvreclaim.report.charts.grouped import grouped_rows
from kvreclaim.report.charts.lines import lines
from kvreclaim.report.charts.plot import Axis, log_axis
from kvreclaim.report.charts.rows import drawn, label, line_of
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme
from kvreclaim.report.wording import number, with_spread

_SHARE = (0, 0.2, 0.4, 0.6, 0.8, 1)
_RECLAIM = Axis("Physical reclaim (share of blocks)", domain=(0, 1), ticks=_SHARE)
KL_TITLE = "KL to the full model (nats, log scale)"
_ASKED = [("Ratio asked", "asked"), ("Retained", "retained")]


def _points(table: pl.DataFrame) -> pl.DataFrame:
    """Return drawn rows of lines that join their points in the order of the ratio, without error bars.

    A dozen lines leave no room for bars of two deviations a point: both are in the words for a pointer.
    """
    texts = [with_spread(x, std) for x, std in table.select("x", "x_std").rows()]
    return drawn(table, "line").with_columns(
        low=pl.col("mean"),
        high=pl.col("mean"),
        x_text=pl.Series(texts, dtype=pl.String),
        order=table["ratio"],
        asked=pl.Series([number(ratio) for ratio in table["ratio"]], dtype=pl.String),
        retained=pl.Series([number(share) for share in table["retained"]], dtype=pl.String),
    )


def tradeoff(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the harm each policy does, as KL, over what it frees without a copy: a line over the ratio.

    Parameters
    ----------
    table
        Rows with columns policy, ratio (asked), retained (measured), x and x_std (physical reclaim), mean and
        std (KL in nats, positive somewhere), n and kind.
    width, theme
        As in `plot`.
    """
    x = Axis(_RECLAIM.title, domain=(-0.02, 1), ticks=_SHARE)
    y = log_axis(table.filter(pl.col("mean") > 0)["mean"], KL_TITLE)
    return lines(
        _points(table),
        x,
        y,
        width,
        theme,
        x_name="Physical reclaim",
        y_name="KL (nats)",
        also=_ASKED,
        height=400,
    )


def over_copies(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the harm each policy does over what packing copies at one ratio, as an advice's candidates.

    Parameters
    ----------
    table, width, theme
        As in `advice.copies`; the mean is KL in nats, geometric over prompts.
    """
    return copies(
        table, "KL to the full model (geometric mean, nats, log scale)", log=True, width=width, theme=theme
    )


def over_saving(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw what each policy frees without a copy over what it saves logically.

    Parameters
    ----------
    table
        Rows with columns policy, ratio, retained, x and x_std (logical saving), mean and std (physical
        reclaim), n and kind.
    width, theme
        As in `plot`.
    """
    ends = pl.Series([0.0, 1.0])
    diagonal = line_of("logical-saving", ends, ends).with_columns(
        order=pl.col("x"), asked=pl.lit("–"), retained=pl.lit("–")
    )
    x = Axis("Logical saving (share of KV pairs evicted)", domain=(0, 1), ticks=_SHARE)
    rows = pl.concat([_points(table), diagonal])
    return lines(
        rows, x, _RECLAIM, width, theme, x_name="Logical saving", y_name="Physical reclaim", also=_ASKED
    )


def over_block_size(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw what each policy frees without a copy at one ratio, over the block size.

    Parameters
    ----------
    table
        Rows with columns policy, x (block size), mean and std (physical reclaim), n and kind, and of the
        series ``logical-saving`` to compare with.
    width, theme
        As in `plot`.
    """
    sizes = tuple(table["x"].unique().sort())
    x = Axis("Block size B (tokens, log scale)", "log", domain=(sizes[0], sizes[-1]), ticks=sizes)
    rows = drawn(table, "line").with_columns(low=pl.col("mean"), high=pl.col("mean"))
    return lines(rows, x, _RECLAIM, width, theme, x_name="Block size", y_name="Physical reclaim")


def at_matched_quality(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw what each policy frees at equal quality: without a copy, by compaction and by packing.

    Parameters
    ----------
    table
        Rows with columns name (the policy), words (of its ratio), policy (the remedy's series), x, mean
        (median reclaim), low and high (its interval), std, n and kind.
    width, theme
        As in `plot`.
    """
    return grouped_rows(_bars(table), _RECLAIM, width, theme, x_name="Median reclaim [95 % interval]")


def needles_found(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the share of needle trials that each policy solves, with the question seen and unseen.

    Parameters
    ----------
    table
        Rows as of `at_matched_quality`; policy is the series of the question, mean the share of the trials
        that the full cache solves.
    width, theme
        As in `plot`.
    """
    x = Axis("Trials solved (share of those that the full cache solves)", domain=(0, 1), ticks=_SHARE)
    return grouped_rows(_bars(table), x, width, theme, x_name="Share solved [95 % interval]")


def _bars(table: pl.DataFrame) -> pl.DataFrame:
    """Return drawn rows of bars in groups, with their intervals in words."""
    intervals = table.select("mean", "low", "high").rows()
    texts = [f"{number(mean)} [{number(low)}, {number(high)}]" for mean, low, high in intervals]
    return drawn(table, "bar").with_columns(
        row=pl.Series([label(name) for name in table["name"]], dtype=pl.String),
        row_value=table["words"],
        low=table["low"],
        high=table["high"],
        value=pl.Series(texts, dtype=pl.String),
    )
