"""Charts of the four eviction strategies at one logical budget."""

from __future__ import annotations

import altair as alt
import polars as pl

from kvreclaim.report.charts.labelled import labelled_rows
from kvreclaim.report.charts.lines import lines
from kvreclaim.report.charts.plot import Axis
from kvreclaim.report.charts.rows import drawn, line_of, with_marks
from kvreclaim.report.section import Width
from kvreclaim.report.theme import Theme
from kvreclaim.report.wording import with_spread


def by_policy(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the physical reclaim of each strategy at one compression ratio."""
    x = Axis("Physical reclaim (share of blocks)", domain=(0, 0.6))
    return labelled_rows(with_marks(table, "bar"), x, width, theme, x_name="Physical reclaim", reference=0.5)


def fragmentation(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the share of dead slots in the blocks that each strategy still holds."""
    x = Axis("Fragmentation (dead share of held slots)", domain=(0, 0.6))
    return labelled_rows(with_marks(table, "bar"), x, width, theme, x_name="Fragmentation")


def over_ratio(table: pl.DataFrame, width: Width, theme: Theme) -> alt.LayerChart:
    """Draw the physical reclaim of each strategy, and the logical saving, over the compression ratio."""
    x = table["x"].unique().sort()
    rows = pl.concat([with_marks(table, "line"), line_of("logical-saving", x, x)])
    ratio = Axis("Compression ratio q (share evicted)", domain=(0, 1))
    reclaim = Axis("Physical reclaim (share of blocks)", domain=(0, 1))
    return lines(rows, ratio, reclaim, width, theme, x_name="Compression ratio", y_name="Physical reclaim")


def tradeoff(
    reclaim: pl.DataFrame, loss: pl.DataFrame, frontier: pl.DataFrame, width: Width, theme: Theme
) -> alt.LayerChart:
    """Draw importance loss over physical reclaim at one compression ratio, with the least loss there can be.

    Parameters
    ----------
    reclaim, loss
        One row a strategy: its physical reclaim and its importance loss.
    frontier
        The least importance loss over the physical reclaim.
    width, theme
        As in `plot`.
    """
    across = {row["policy"]: row for row in reclaim.iter_rows(named=True)}
    points = loss.with_columns(x=pl.Series([across[policy]["mean"] for policy in loss["policy"]]))
    spread = pl.Series([across[policy]["std"] for policy in loss["policy"]], dtype=pl.Float64)
    texts = pl.Series(
        [with_spread(across[policy]["mean"], across[policy]["std"]) for policy in loss["policy"]]
    )
    dots = drawn(points, "dot").with_columns(
        x_text=texts, left=pl.col("x") - spread, right=pl.col("x") + spread
    )
    curve = drawn(frontier, "curve").with_columns(left=pl.col("x"), right=pl.col("x"))
    rows = pl.concat([curve, dots])
    x = Axis("Physical reclaim (share of blocks)", domain=(-0.02, 0.55), ticks=(0, 0.1, 0.2, 0.3, 0.4, 0.5))
    y = Axis("Importance lost (share of the total)", domain=(0, 0.6))
    return lines(rows, x, y, width, theme, x_name="Physical reclaim", y_name="Importance lost")
