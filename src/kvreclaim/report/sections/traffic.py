"""Under traffic: who runs, who waits, and the load that a deployment carries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import polars as pl

from kvreclaim.report.charts import traffic as charts
from kvreclaim.report.charts.plot import Scale
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import Control, Drawing, Figure, Item, Section, Table
from kvreclaim.report.sections.parts import LINEAR_FIRST, plain
from kvreclaim.report.sections.traffic_words import (
    alike,
    at_load,
    findings,
    key_numbers,
    number_or_none,
    where,
)
from kvreclaim.report.wording import number

_POINTS = 120  # of a line: more would not be seen
_QUANTITIES = {
    "running": "Requests running",
    "waiting": "Requests waiting",
    "free_blocks": "Free blocks",
}
_MEMORY = {"held_pages": "Held pages", "stranded": "Stranded share"}
_WAITING = {"ttft": "To the first token", "latency": "To the last token"}
_MODES = {"pack": "Pack", "free": "Free whole blocks", "reuse": "Reuse holes", "mask": "Mask only"}
_ALWAYS = ("full cache", "fp8", "as given")


def build(folder: Folder) -> Section:
    """Return the section of a simulation, or of a plan's simulations."""
    summary = folder.table("traffic.csv")
    modes = _modes(summary)
    items: list[Item] = []
    if folder.command == "plan":
        items += _capacity(folder)
    items += [_over_time(folder, modes), *_memory(folder, modes)]
    items += [_percentiles(folder, modes), _sums(folder, summary)]
    return Section(
        id="traffic",
        title="Under traffic",
        prose=(
            "Requests of a trace arrive, wait for blocks, run, and leave; when blocks lack, the one that "
            "came last starts over. A simulation by vLLM's scheduling rules, step by step.",
            *where(folder),
            *findings(folder, summary),
            *alike(summary),
        ),
        items=tuple(items),
        key_numbers=key_numbers(folder, summary),
        sources=("paged-attention",),
    )


def _modes(summary: pl.DataFrame) -> tuple[str, ...]:
    named = {name.rpartition(", ")[2] for name in summary["scenario"] if ", " in name}
    return tuple(mode for mode in _MODES if mode in named)


def _of_mode(table: pl.DataFrame, mode: str | None) -> pl.DataFrame:
    """Return the rows of one mode and of what has none, their series named by the method."""
    scenario = pl.col("scenario")
    found = table.filter(scenario.is_in(_ALWAYS) | (scenario.str.ends_with(f", {mode}") if mode else False))
    return found.with_columns(
        policy=scenario.str.replace(r", \w+$", "").str.replace("full cache", "traffic-full")
    )


def _thin(rows: pl.DataFrame) -> pl.DataFrame:
    """Return at most `_POINTS` rows of each series, evenly spaced."""
    place, count = pl.int_range(pl.len()).over("policy"), pl.len().over("policy")
    return rows.filter((place % ((count + _POINTS - 1) // _POINTS) == 0) | (place == count - 1))


def _tidy(rows: pl.DataFrame, x: str, mean: str) -> pl.DataFrame:
    return rows.select(
        "policy",
        x=pl.col(x).cast(pl.Float64),
        mean=pl.col(mean).cast(pl.Float64),
        std=pl.lit(None, pl.Float64),
        n=pl.lit(None, pl.Int64),
        kind=pl.lit("simulated"),
    )


def _controls(modes: tuple[str, ...], what: Control) -> tuple[Control, ...]:
    mode = Control("mode", "Dead slots", tuple((name, _MODES[name]) for name in modes))
    return (what, mode) if len(modes) > 1 else (what,)


def _keys(what: str, modes: tuple[str, ...]) -> Mapping[tuple[str, ...], str | None]:
    if len(modes) > 1:
        return {(what, mode): mode for mode in modes}
    return {(what,): modes[0] if modes else None}


def _over_time(folder: Folder, modes: tuple[str, ...]) -> Figure:
    table = folder.table("timeline.csv")
    return Figure(
        id="traffic-time",
        title="Over the time of the trace",
        caption=(
            "Each point is what the step around that second left. Where the waiting line rises and stays, "
            "more arrives than the deployment can serve."
        ),
        drawings=_over_time_drawings(table, modes, _QUANTITIES),
        controls=_controls(modes, Control("quantity", "Show", tuple(_QUANTITIES.items()))),
        series=_series(table, modes),
        wide=True,
    )


def _memory(folder: Folder, modes: tuple[str, ...]) -> Iterator[Figure]:
    """Yield what is held and what of it is dead, where the time line has that."""
    table = folder.table("timeline.csv")
    shown = {what: words for what, words in _MEMORY.items() if _most(table, what) > 0}
    if not shown:
        return
    yield Figure(
        id="traffic-memory",
        title="Memory that serves nobody",
        caption=(
            "A VMM page is held while any of its blocks is. Stranded: slots of evicted pairs in blocks that "
            "are held, as a share of all that are filled."
        ),
        drawings=_over_time_drawings(table, modes, shown),
        controls=_controls(modes, Control("memory", "Show", tuple(shown.items()))),
        series=_series(table, modes),
        wide=True,
    )


def _over_time_drawings(
    table: pl.DataFrame, modes: tuple[str, ...], quantities: Mapping[str, str]
) -> dict[tuple[str, ...], Drawing]:
    """Return a drawing of each quantity over time, in each mode; a quantity has one scale in all modes."""
    drawings: dict[tuple[str, ...], Drawing] = {}
    for what, words in quantities.items():
        most = _most(table, what) or 1.0
        for key, mode in _keys(what, modes).items():
            rows = _tidy(_thin(_of_mode(table, mode)).drop_nulls(what), "time", what)
            drawings[key] = partial(charts.over_time, rows, words, most)
    return drawings


def _most(table: pl.DataFrame, what: str) -> float:
    return max(table[what].drop_nulls().to_list(), default=0.0)


def _percentiles(folder: Folder, modes: tuple[str, ...]) -> Figure:
    table = folder.table("percentiles.csv")
    drawings: dict[tuple[str, ...], Drawing] = {}
    scales: tuple[Scale, ...] = ("linear", "log")
    for what in _WAITING:
        for key, mode in _keys(what, modes).items():
            rows = _tidy(_of_mode(table, mode), "percent", what)
            for scale in scales:
                drawings[(*key, scale)] = partial(charts.percentiles, rows, scale)
    return Figure(
        id="traffic-waiting",
        title="How long requests wait",
        caption="Sorted seconds from a request's arrival: its half at 50, its slowest hundredth at 99.",
        drawings=drawings,
        controls=(*_controls(modes, Control("until", "Seconds", tuple(_WAITING.items()))), LINEAR_FIRST),
        series=_series(table, modes),
    )


def _series(table: pl.DataFrame, modes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_of_mode(table, modes[0] if modes else None)["policy"]))


def _capacity(folder: Folder) -> Iterator[Item]:
    """Yield the bars of the loads that were found, where there are any, and the table of all."""
    table = folder.table("capacity.csv")
    found = table.filter(pl.col("requests_per_second_per_gpu").is_not_null())
    if found.height:
        yield _carried(folder, found)
    yield Table(
        id="traffic-capacities",
        title="What is carried, and what binds there",
        caption=(
            f"{_target(folder)}. Load: times the trace's own; 'any' where even all requests at once meet the "
            "target, '–' where no load does. What binds: at the next load, less than 1 % higher. Simulated."
        ),
        columns=("scenario", "refused", "requests/s and GPU", "load", "binds"),
        rows=tuple(
            (
                row["name"] if row["mode"] is None else f"{row['name']}, {row['mode']}",
                number(row["refused"]),
                number_or_none(row["requests_per_second_per_gpu"]),
                "any" if row["outcome"] == "any load" else number_or_none(row["load"]),
                row["binds_at_capacity"],
            )
            for row in table.iter_rows(named=True)
        ),
        numeric=frozenset({1, 2, 3}),
    )


def _carried(folder: Folder, table: pl.DataFrame) -> Figure:
    mode = pl.col("mode")
    rows = table.select(
        name=pl.when(mode.is_null()).then(pl.col("name")).otherwise(pl.col("name") + ", " + mode),
        policy=pl.col("name").str.replace("full cache", "traffic-full"),
        x=pl.lit(0.0),
        mean=pl.col("requests_per_second_per_gpu"),
        std=pl.lit(None, pl.Float64),
        n=pl.lit(None, pl.Int64),
        kind=pl.lit("simulated"),
    ).sort("mean", descending=True, maintain_order=True)
    return Figure(
        id="traffic-capacity",
        title="The load that meets the target",
        caption=(
            f"{_target(folder)}. Found by simulating the trace faster and slower, to less than 1 %. 8-bit "
            "caches hold twice the tokens in the same bytes; no quality is compared here."
        ),
        drawings=plain(charts.carried, rows),
        series=tuple(dict.fromkeys(rows["policy"])),
    )


def _target(folder: Folder) -> str:
    parameters = folder.run.get("parameters", {})
    named = {"ttft_p99": "99 % of the requests get a first token", "latency_p99": "99 % end"}
    found = [f"{words} within {parameters[key]:g} s" for key, words in named.items() if parameters.get(key)]
    return " and ".join(found) or "Within the target"


def _sums(folder: Folder, summary: pl.DataFrame) -> Table:
    columns = (
        "peak_running",
        "peak_waiting",
        "preemptions",
        "ttft_mean",
        "ttft_p99",
        "latency_p50",
        "latency_p99",
    )
    return Table(
        id="traffic-sums",
        title="In sum",
        caption=f"{at_load(folder)}Times in seconds; peaks over all steps. Simulated.",
        columns=("scenario", *(name.replace("_", " ") for name in columns), "pool binds"),
        rows=tuple(
            (
                row["scenario"],
                *("–" if row[name] is None else number(row[name]) for name in columns),
                "yes" if row["pool_binding"] else "no",
            )
            for row in summary.iter_rows(named=True)
        ),
        numeric=frozenset(range(1, len(columns) + 1)),
    )
