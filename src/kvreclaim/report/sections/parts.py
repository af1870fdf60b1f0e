"""What several sections share: drawings from chart functions, the scale's control, and the study's faults."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import altair as alt
import polars as pl

from kvreclaim.report.charts.plot import Scale
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import Control, Drawing, Notes, Width
from kvreclaim.report.theme import Theme

LINEAR_FIRST = Control("scale", "Scale", (("linear", "Linear"), ("log", "Logarithmic")))
LOG_FIRST = Control("scale", "Scale", (("log", "Logarithmic"), ("linear", "Linear")))

Chart = Callable[[pl.DataFrame, Width, Theme], alt.LayerChart]
ScaledChart = Callable[[pl.DataFrame, Scale, Width, Theme], alt.LayerChart]


def plain(chart: Chart, table: pl.DataFrame) -> dict[tuple[str, ...], Drawing]:
    """Return the one drawing of a figure without controls."""
    return {(): partial(chart, table)}


def scaled(chart: ScaledChart, table: pl.DataFrame) -> dict[tuple[str, ...], Drawing]:
    """Return a figure's drawings for the control of the scale."""
    scales: tuple[Scale, ...] = ("linear", "log")
    return {(scale,): partial(chart, table, scale) for scale in scales}


def faults(folder: Folder, section: str) -> tuple[Notes, ...]:
    """Return the notes on where the published study is shaky, if the folder names any for the section."""
    texts = folder.faults(section)
    return (Notes("Where the published study is shaky", texts),) if texts else ()


def provenance(folder: Folder, done: str) -> str:
    """Return when the numbers were made, and with which versions; ``done`` is "Measured" or the like."""
    date = str(folder.run.get("created", "")).partition("T")[0]
    versions = ", ".join(f"{name} {version}" for name, version in folder.run.get("versions", {}).items())
    return f"{done}{f' on {date}' if date else ''}{f' with {versions}' if versions else ''}"
