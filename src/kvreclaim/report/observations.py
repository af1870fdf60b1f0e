"""What ``kvreclaim observe`` wrote: its tables, held to each other before anything is said of them.

A run's figures stand in ``runs.csv`` beside a verdict, ``unequal``: in what the run did not do as predicted.
Both follow from ``steps.csv`` and ``evictions.csv``; where they don't, the folder is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.report.columns import OPTIONAL
from kvreclaim.report.folder import Folder
from kvreclaim.report.relations import agree

Row = dict[str, Any]
Rows = list[Row]

RUNS, STEPS, EVICTIONS, BUDGETS = "runs.csv", "steps.csv", "evictions.csv", "budgets.csv"
FIGURES = ("peak_running", "steps", "blocks_freed", "preemptions", "free_blocks_end")
QUEUES = ("scheduled", "running", "waiting")
SIZES = ("model", "runtime", "block_size", "pool_blocks", "requests", "prompt_tokens", "max_tokens")
"""Parameters of the command that each run repeats."""


def observed_tables(folder: Folder) -> tuple[Rows, pl.DataFrame]:
    """Return the runs, the one with the full cache first, and their steps.

    Raises
    ------
    InputError
        If a table is missing or none, there is no run with the full cache, or tables contradict each other
        or ``run.json``: the line names the file, the row and the column.
    """
    runs = list(folder.table(RUNS).iter_rows(named=True))
    if not runs or runs[0]["policy"] != "none":
        raise InputError(f"{folder.path / RUNS} has no run with the full cache: run the command again")
    steps, evictions = folder.table(STEPS), folder.table(EVICTIONS)
    _check_steps(folder, runs, steps)
    _check_pool(folder, steps)
    _check_evictions(folder, runs, evictions)
    by_step = {key: list(part.iter_rows(named=True)) for (key,), part in steps.group_by("run")}
    by_eviction = {key: list(part.iter_rows(named=True)) for (key,), part in evictions.group_by("run")}
    asked = folder.run.get("parameters", {})
    for place, run in enumerate(runs, start=1):
        said = _Refusals(folder.path / RUNS, place, run)
        for name in SIZES:
            said.hold(name, asked.get(name, run[name]), "run.json")
        if (run.get("outside") or 0) > run["requests"]:
            said.refuse("outside", f"at most {run['requests']}", "'requests'")
        for mask in ("kl_asked", "kl_effective"):
            if run.get(f"{mask}_count") is not None:
                said.hold(f"{mask}_count", run["requests"], "'requests'")
        _check_run(said, by_step.get(run["run"], []), by_eviction.get(run["run"], []))
    return runs, steps


def matched_budgets(folder: Folder, runs: Rows) -> Rows:
    """Return the budgets of matched quality; InputError if they are not those of the runs."""
    budgets = list(folder.table(BUDGETS).iter_rows(named=True))
    for place, budget in enumerate(budgets, start=1):
        said = _Refusals(folder.path / BUDGETS, place, budget)
        said.hold("target_kl", budgets[0]["target_kl"], "row 1", agree)
        run = run_of(budget, runs[1:])
        if run is not None:
            for name in ("ratio", "target_kl", "outside"):
                said.hold(name, run.get(name), f"{RUNS} of run {run['run']}", agree)
        elif budget["budget"] == runs[0]["prompt_tokens"]:  # nothing may go, up to the rest of a block
            most = (runs[0]["block_size"] + 1) / budget["budget"]
            if budget["ratio"] >= most:
                said.refuse("ratio", f"less than {most:.7g}", "'budget', the whole prompt")
    wanted = {run["run"] for run in runs[1:]} - {run["run"] for run in _runs_of(budgets, runs[1:])}
    for place, run in enumerate(runs, start=1):
        if run["run"] in wanted:
            _Refusals(folder.path / RUNS, place, run).refuse("budget", "no run of such a policy", BUDGETS)
    return budgets


def run_of(budget: Row, runs: Rows) -> Row | None:
    """Return the run with a budget; None where nothing may go, so that there was none."""
    same = [run for run in runs if all(run[key] == budget[key] for key in ("policy", "mode", "budget"))]
    return same[0] if same else None


def _runs_of(budgets: Rows, runs: Rows) -> Rows:
    return [run for budget in budgets if (run := run_of(budget, runs)) is not None]


class _Refusals:
    """A row of a file, and the line in which it is refused."""

    def __init__(self, file: Path, place: int, row: Row) -> None:
        self.file, self.place, self.row = file, place, row

    def hold(
        self,
        column: str,
        wanted: Any,
        source: str,
        same: Callable[[Any, Any], bool] = lambda found, wanted: bool(found == wanted),
    ) -> None:
        """Refuse a value unless it is what another place says."""
        if not same(self.row[column], wanted):
            self.refuse(column, _shown(wanted), source)

    def refuse(self, column: str, wanted: str, source: str) -> None:
        """Refuse a value, in one line that names it and says what contradicts it."""
        raise InputError(
            f"{self.file} has {_shown(self.row[column])} as {column!r} in row {self.place}, and {source} "
            f"says {wanted}: pass a folder that kvreclaim wrote, whole"
        )


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value}"


def _check_steps(folder: Folder, runs: Rows, steps: pl.DataFrame) -> None:
    """Refuse steps that are not those of the runs: a row for each that was observed or predicted."""
    found = dict(steps.group_by("run").len().iter_rows())
    wanted = {run["run"]: max(run["observed_steps"] or 0, run["predicted_steps"] or 0) for run in runs}
    for run in wanted.keys() | found.keys():
        if found.get(run, 0) != wanted.get(run, 0):
            raise InputError(
                f"{folder.path / STEPS} has {found.get(run, 0)} steps of run {run}, and {RUNS} "
                f"{wanted.get(run, 0)}: pass a folder that kvreclaim wrote, whole"
            )
    numbers: dict[int, int] = {}
    for place, row in enumerate(steps.iter_rows(named=True), start=1):
        numbers[row["run"]] = numbers.get(row["run"], 0) + 1
        _Refusals(folder.path / STEPS, place, row).hold("step", numbers[row["run"]], "the row before")


def _check_pool(folder: Folder, steps: pl.DataFrame) -> None:
    """Refuse more free blocks than the pool has, and more requests than there are."""
    asked = folder.run.get("parameters", {})
    most = {"free_blocks": asked.get("pool_blocks"), **dict.fromkeys(QUEUES, asked.get("requests"))}
    for place, row in enumerate(steps.iter_rows(named=True), start=1):
        for column, limit in most.items():
            for name in (column, f"predicted_{column}"):
                if limit is not None and row[name] is not None and row[name] > limit:
                    said = _Refusals(folder.path / STEPS, place, row)
                    said.refuse(name, f"at most {limit}", "run.json")


def _check_evictions(folder: Folder, runs: Rows, evictions: pl.DataFrame) -> None:
    """Refuse evictions of runs and requests that there are not, or of another policy than the run's."""
    lacking = [column for column in OPTIONAL[EVICTIONS] if column not in evictions.columns]
    if lacking and evictions.height:
        raise InputError(
            f"{folder.path / EVICTIONS} has no column {lacking[0]!r}: pass a folder that kvreclaim wrote, "
            "whole"
        )
    known = {run["run"]: run for run in runs}
    for place, row in enumerate(evictions.iter_rows(named=True), start=1):
        said = _Refusals(folder.path / EVICTIONS, place, row)
        run = known.get(row["run"])
        if run is None:
            said.refuse("run", "there is no such run", RUNS)
            continue
        if row["request"] is None or row["request"] >= run["requests"]:
            said.refuse("request", f"there are {run['requests']}", RUNS)
        most = {
            "step": max(run["observed_steps"] or 0, run["predicted_steps"] or 0),
            **dict.fromkeys(("tokens", "predicted_tokens"), run["prompt_tokens"] + run["max_tokens"]),
            "held": row["tokens"],
            "predicted_held": row["predicted_tokens"],
        }
        for name, limit in most.items():
            if limit is not None and row[name] is not None and row[name] > limit:
                said.refuse(name, f"at most {limit}", f"{RUNS}, or the row's own tokens,")
        for name in ("policy", "mode", "budget"):
            if row[name] is not None:  # of a predicted eviction that did not come, only the policy is known
                said.hold(name, run[name], RUNS)


def _check_run(said: _Refusals, steps: Rows, evictions: Rows) -> None:
    """Refuse a run whose figures or verdict are not those of its steps and evictions."""
    run, figures = said.row, {}
    predicted = run["predicted_steps"] is not None
    for kind, prefix in (("observed", ""), ("predicted", "predicted_")):
        figures[kind] = _figures(steps, evictions, prefix)
        for name, wanted in figures[kind].items():
            column = f"{kind}_{name}"
            if predicted or (kind == "observed" and run[column] is not None):
                source = EVICTIONS if name == "blocks_freed" else STEPS
                said.hold(column, wanted, source)
            elif run[column] is not None:
                said.refuse(column, "nothing is predicted", "'predicted_steps'")
    if predicted or run["moved_bytes"] is not None:
        said.hold("moved_bytes", sum(row["moved_bytes"] or 0 for row in evictions), EVICTIONS)
    unequal = set(_unequal(figures, steps, evictions))
    if not predicted:
        said.hold("unequal", None, "'predicted_steps', which is empty,")
    elif run["unequal"] is None or set(run["unequal"].split()) != (unequal or {"nothing"}):
        differing = " ".join(sorted(unequal)) or "nothing"
        said.refuse("unequal", differing, f"what {STEPS} and {EVICTIONS} hold")


def _figures(steps: Rows, evictions: Rows, prefix: str) -> dict[str, int | None]:
    """Return a run's figures as its steps and evictions have them, observed or, by the prefix, predicted."""
    rows = _of(steps, prefix)
    last: Mapping[str, Any] = rows[-1] if rows else {}
    return {
        "peak_running": max((row[f"{prefix}scheduled"] or 0 for row in rows), default=0),
        "steps": len(rows),
        "blocks_freed": sum(row[f"{prefix}blocks_freed"] or 0 for row in evictions),
        "preemptions": last.get(f"{prefix}preemptions"),
        "free_blocks_end": last.get(f"{prefix}free_blocks"),
    }


def _of(steps: Rows, prefix: str) -> Rows:
    """Return the steps that were observed or, by the prefix, predicted: one of the two may be longer."""
    return [row for row in steps if row[f"{prefix}free_blocks"] is not None]


def _unequal(figures: Mapping[str, Row], steps: Rows, evictions: Rows) -> Iterator[str]:
    """Yield in what a run did not do as predicted, as ``observe`` names it."""
    for name in FIGURES:
        if figures["observed"][name] != figures["predicted"][name]:
            yield name
    freed: dict[int, int] = {}
    for row in evictions:
        difference = (row["blocks_freed"] or 0) - (row["predicted_blocks_freed"] or 0)
        freed[row["request"]] = freed.get(row["request"], 0) + difference
    if any(freed.values()):
        yield "blocks_freed_by_request"
    if not all(_as_predicted(row) for row in evictions):
        yield "evictions"
    if any(row["free_blocks"] != row["predicted_free_blocks"] for row in steps):
        yield "free_blocks_by_step"
    if any(row[name] != row[f"predicted_{name}"] for row in steps for name in QUEUES):
        yield "queues_by_step"


def _as_predicted(row: Row) -> bool:
    """Tell whether an eviction gave back what was predicted, and left what was."""
    if row["tokens"] is None:  # predicted, and did not come
        return False
    if row["predicted_tokens"] is None:
        return bool(row["blocks_freed"] == 0)
    return all(row[name] == row[f"predicted_{name}"] for name in ("tokens", "held", "blocks_freed"))
