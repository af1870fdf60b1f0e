"""A simulation as tidy tables, for results folders and their page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from kvreclaim.results import ResultsFolder
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.outcome import ByRequest, Simulation
from kvreclaim.serving.scenario import Scenario
from kvreclaim.serving.trace import Trace

PERCENTS = (*range(1, 100), 99.5, 99.9)
POINTS = 600  # rows of a time line
_ALWAYS = ("model", "gpu", "gpus", "load")
STATUS = {places.PENDING: "pending", places.FINISHED: "finished", places.REFUSED_REQUEST: "refused"}


def nice_interval(seconds: float) -> float:
    """Return an interval for about `POINTS` samples of so many seconds: 1, 2 or 5 times a power of ten."""
    rough = max(seconds, 1e-3) / POINTS
    power = 10.0 ** np.floor(np.log10(rough))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= rough))


def timeline(name: str, simulation: Simulation) -> pl.DataFrame:
    """Return what held at each sample: running, waiting, free blocks, held pages, the stranded share."""
    rows = simulation.samples
    filled, dead = rows[:, places.S_FILLED], rows[:, places.S_DEAD]
    stranded = np.divide(dead, filled, out=np.full(len(rows), np.nan), where=filled > 0)
    columns = {"running": places.S_RUNNING, "waiting": places.S_WAITING, "free_blocks": places.S_FREE}
    return pl.DataFrame(
        {
            "scenario": pl.repeat(name, len(rows), eager=True, dtype=pl.String),
            "time": rows[:, places.S_TIME],
            **{column: rows[:, place].astype(np.int64) for column, place in columns.items()},
            "held_pages": rows[:, places.S_PAGES].astype(np.int64),
            "stranded": stranded,
            "kind": pl.repeat("simulated", len(rows), eager=True, dtype=pl.String),
        }
    )


def percentiles(name: str, simulation: Simulation) -> pl.DataFrame:
    """Return percentiles of the seconds to the first and to the last token."""
    totals = simulation.totals
    if not totals.served:
        return pl.DataFrame(schema=_PERCENTILES)
    return pl.DataFrame(
        {
            "scenario": [name] * len(PERCENTS),
            "percent": [float(percent) for percent in PERCENTS],
            "ttft": totals.ttft.percentiles(PERCENTS),
            "latency": totals.latency.percentiles(PERCENTS),
            "n": [totals.served] * len(PERCENTS),
            "kind": ["simulated"] * len(PERCENTS),
        },
        schema=_PERCENTILES,
    )


_PERCENTILES: dict[str, type[pl.DataType]] = {
    "scenario": pl.String,
    "percent": pl.Float64,
    "ttft": pl.Float64,
    "latency": pl.Float64,
    "n": pl.Int64,
    "kind": pl.String,
}


def requests(trace: Trace, each: ByRequest) -> pl.DataFrame:
    """Return each request: when it came, was scheduled, got its first and last token, and its preemptions."""
    return pl.DataFrame(
        {
            "request": np.arange(trace.requests),
            "arrival": trace.arrival,
            "prompt": trace.prompt,
            "output": trace.output,
            "scheduled": each.scheduled,
            "first_token": each.first_token,
            "finish": each.finish,
            "preemptions": each.preemptions,
            "status": pl.Series(each.status).replace_strict(STATUS, return_dtype=pl.String),
        }
    ).fill_nan(None)


def write_traffic(
    folder: ResultsFolder,
    command: str,
    parameters: Mapping[str, Any],
    simulations: Sequence[tuple[str, Simulation]],
) -> None:
    """Write the tables of some simulations by name, and ``run.json``."""
    folder.claim(command)
    summary = [{"scenario": name, **simulation.summary()} for name, simulation in simulations]
    lines = pl.concat([timeline(name, simulation) for name, simulation in simulations])
    shares = pl.concat([percentiles(name, simulation) for name, simulation in simulations])
    folder.write("traffic.csv", pl.DataFrame(summary, infer_schema_length=None).write_csv())
    folder.write("timeline.csv", lines.fill_nan(None).write_csv())
    folder.write("percentiles.csv", shares.write_csv())
    folder.write_run(command, parameters, ["simulated"], ["numpy", "numba", "polars"])


def as_parameters(scenario: Scenario) -> dict[str, Any]:
    """Return what differs from the defaults, and what a reader asks first, for ``run.json``."""
    default, given = asdict(Scenario()), asdict(scenario)
    found = {name: value for name, value in given.items() if value != default[name] or name in _ALWAYS}
    return {**found, "step_time_source": scenario.timing().source}
