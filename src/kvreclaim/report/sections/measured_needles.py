"""Needles that the policies found in a measurement: chart, table, and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from kvreclaim.report.charts import measured as charts
from kvreclaim.report.charts.rows import label
from kvreclaim.report.measurements import Measurements
from kvreclaim.report.section import Control, Drawing, Figure, Table
from kvreclaim.report.wording import counted, listed

LEAST_SOLVED = 50  # trials that the full cache solves, before policies are ranked on them
_TASKS = {"single": "One needle", "multi-key": "One of four keys", "multi-value": "Four values of a key"}
_SEEN = {True: "question seen", False: "question unseen"}

Rows = list[dict[str, Any]]


def findings(measured: Measurements) -> tuple[str, ...]:
    """Say of every task which policies solve more of it, where the intervals tell them apart."""
    return tuple(_finding(task, seen, rows) for (task, seen), rows in _cells(measured).items())


def figure(measured: Measurements) -> Figure | None:
    """Return the shares of trials solved, as bars with their intervals; None where no policy was tried."""
    tried = measured.needles.filter(pl.col("share").is_not_null())
    if tried.is_empty():
        return None
    tasks = tuple(dict.fromkeys(tried["task"]))
    series = {True: "question-seen", False: "question-unseen"}
    drawings: dict[tuple[str, ...], Drawing] = {
        (task,): partial(charts.needles_found, _bars(measured, tried.filter(task=task), series))
        for task in tasks
    }
    return Figure(
        id="measured-needles",
        title="Needles: what a question about the prompt finds",
        caption=(
            "A fact with a number of seven digits is hidden in the text and asked for; solved is an answer "
            "that holds the number, or all of them. A policy evicts at the end of the prompt: the question "
            f"is in it (seen) or comes after (unseen). Ratio {_ratios(tried)}{_length(measured)}. Trials "
            "that the full cache fails do not count."
        ),
        drawings=drawings,
        controls=(Control("needle-task", "Task", tuple((task, _task(task)) for task in tasks)),),
        series=tuple(key for seen, key in series.items() if seen in set(tried["question_seen"])),
        spread="[95 % Wilson interval]",
        wide=True,
    )


def tables(measured: Measurements) -> tuple[Table, ...]:
    """Return a table for each task: the counts behind the shares, and what is kept of the needles."""
    by_task: dict[str, dict[bool, Rows]] = {}
    for (task, seen), rows in _cells(measured).items():
        by_task.setdefault(task, {})[seen] = rows
    return tuple(
        _table(measured, f"measured-needle-table-{place}", task, cells)
        for place, (task, cells) in enumerate(by_task.items(), start=1)
    )


def _table(measured: Measurements, name: str, task: str, cells: Mapping[bool, Rows]) -> Table:
    columns: list[tuple[str, dict[str, str]]] = []
    for seen, rows in cells.items():
        words = _SEEN[seen].capitalize()
        columns += [
            (f"{words}: solved", {row["policy"]: _count(row) for row in rows}),
            (f"{words}: needle kept", {row["policy"]: _share(row["needle_retained"]) for row in rows}),
        ]
    found = measured.needles.filter(task=task)
    policies = measured.ordered(found.unique("policy", maintain_order=True))["policy"].to_list()
    return Table(
        id=name,
        title=f"Needles, {_task(task).lower()}, ratio {_ratios(found)}",
        caption=(
            "Trials that the policy solves of those that the full cache solves, their share and its 95 % "
            "Wilson interval; mean share kept of the KV pairs of the needles asked for. Measured."
        ),
        columns=("Policy", *(title for title, _ in columns)),
        rows=tuple(
            (label(policy), *(column.get(policy, "") for _, column in columns)) for policy in policies
        ),
        numeric=frozenset(range(1, len(columns) + 1)),
    )


def _cells(measured: Measurements) -> dict[tuple[str, bool], Rows]:
    """Return the rows of each task, seen and unseen, in the section's order of policies."""
    cells: dict[tuple[str, bool], Rows] = {}
    keys = measured.needles.select("task", "question_seen").unique(maintain_order=True).rows()
    for task, seen in keys:
        rows = measured.needles.filter(task=task, question_seen=seen)
        cells[task, seen] = list(measured.ordered(rows).iter_rows(named=True))
    return cells


def _bars(measured: Measurements, rows: pl.DataFrame, series: Mapping[bool, str]) -> pl.DataFrame:
    """Return rows to draw: a group a policy, a bar with the question seen and one with it unseen."""
    ordered = measured.ordered(rows.sort("question_seen", descending=True, maintain_order=True))
    count = pl.format("{} of {}", "solved", "full_solved")
    return ordered.select(
        name="policy",
        words=count.str.join(", ").over("policy"),
        policy=pl.col("question_seen").replace_strict(series, return_dtype=pl.String),
        x=pl.lit(0.0),
        mean="share",
        low="low",
        high="high",
        std=pl.lit(0.0),
        n="full_solved",
        kind=pl.lit("measured"),
    )


def _finding(task: str, seen: bool, rows: Rows) -> str:
    solved, trials = (max(row[column] for row in rows) for column in ("full_solved", "trials"))
    shown = counted(trials, "trial")
    head = f"Needles, {_task(task).lower()}, {_SEEN[seen]}: the full cache solves {solved} of {shown}."
    if solved == 0:
        return f"{head} On these nothing can be said of any policy."
    if solved < LEAST_SOLVED:
        return f"{head} On fewer than {LEAST_SOLVED} no policies are ranked."
    worse = {row["policy"]: tuple(_below(row, rows)) for row in rows}
    groups: dict[tuple[str, ...], list[str]] = {}
    for policy, below in worse.items():
        if below:
            groups.setdefault(below, []).append(policy)
    if not groups:
        return f"{head} All intervals overlap: no policies are ranked."
    told = [
        f"{_names(better)} more than {_in_short(below, [name for name in worse if name not in better])}"
        for below, better in sorted(groups.items(), key=lambda group: -len(group[0]))
    ]
    return f"{head} With intervals apart, {'; '.join(told)}. All other pairs overlap and are not ranked."


def _below(one: Mapping[str, Any], rows: Rows) -> list[str]:
    """Return the policies that solve less than one, their intervals apart, all on enough trials."""
    return [
        row["policy"]
        for row in rows
        if row["ratio"] == one["ratio"]
        and min(row["full_solved"], one["full_solved"]) >= LEAST_SOLVED
        and row["high"] < one["low"]
    ]


def _in_short(below: Sequence[str], others: Sequence[str]) -> str:
    """Return policies by their names, or, where that is shorter, as all of the others but some."""
    spared = [policy for policy in others if policy not in below]
    if len(spared) + 1 >= len(below):
        return _names(below)
    return f"all others but {_names(spared)}" if spared else "all others"


def _count(row: Mapping[str, Any]) -> str:
    if row["share"] is None:
        return f"0 of 0 ({counted(row['trials'], 'trial')})"
    interval = f"[{row['low']:.2f}, {row['high']:.2f}]"
    return f"{row['solved']} of {row['full_solved']}: {row['share']:.2f} {interval}".replace(
        " ", "\N{NO-BREAK SPACE}"
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _task(task: str) -> str:
    return _TASKS.get(task, task)


def _ratios(rows: pl.DataFrame) -> str:
    return listed([f"{ratio:g}" for ratio in rows["ratio"].unique().sort()])


def _length(measured: Measurements) -> str:
    asked = measured.parameters.get("needles")
    context = asked.get("context") if isinstance(asked, Mapping) else None
    return f", prompts of {context:,} tokens" if isinstance(context, int) else ""


def _names(policies: Sequence[str]) -> str:
    return listed([label(policy) for policy in policies])
