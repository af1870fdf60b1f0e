"""What the figures of a measurement share: buttons for block tables, and metrics over one another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import polars as pl

from kvreclaim.report.measurements import TABLES, Measurements, pooled
from kvreclaim.report.section import Control, Drawing
from kvreclaim.report.sections.parts import Chart


def table_control(measured: Measurements) -> Control:
    """Return the buttons for the kinds of block tables."""
    return Control("block-tables", "Block tables", tuple((kind, TABLES[kind]) for kind in measured.tables))


def by_table(
    measured: Measurements, chart: Chart, rows: Callable[[Measurements, str], pl.DataFrame]
) -> dict[tuple[str, ...], Drawing]:
    """Return a drawing for each kind of block table."""
    return {(kind,): partial(chart, rows(measured, kind)) for kind in measured.tables}


def joined(measured: Measurements, kind: str, x: str, y: str) -> pl.DataFrame:
    """Return one metric over another, a row a policy and ratio, best policy first."""
    by = ("policy", "ratio")
    rows = measured.at(kind).with_columns(logical_saving=1 - pl.col("retained"))
    across = pooled(rows, x, by).select(*by, x="mean", x_std="std")
    kept = pooled(rows, "retained", by).select(*by, retained="mean")
    table = pooled(rows, y, by).join(across, on=by).join(kept, on=by)
    return measured.ordered(table, "ratio")
