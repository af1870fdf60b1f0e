"""What `kvreclaim measure` prints of needles: a table a task, the question seen and unseen side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvreclaim.cli.output import MISSING, percent, plain_table, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.table import Table

    from kvreclaim.capture.measure.needles import NeedleRow

WORDS = {True: "seen", False: "unseen"}


def needle_tables(rows: Sequence[NeedleRow]) -> Iterator[Table]:
    """Yield a table for each task, the policy that finds the most, seen and unseen, first."""
    for task in dict.fromkeys(row.task for row in rows):
        yield _table(task, [row for row in rows if row.task == task])


def _table(task: str, rows: Sequence[NeedleRow]) -> Table:
    by_policy: dict[str, dict[bool, NeedleRow]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, {})[row.question_seen] = row
    seen = next(iter(by_policy.values()))
    counts = " and ".join(
        f"{row.full_solved} of {row.trials} with the question {WORDS[row.question_seen]}"
        for row in seen.values()
    )
    table = plain_table(
        f"Needles, {task}, at ratio {rows[0].ratio:g}",
        f"The full cache solves {counts}: shares are of those, with 95 % Wilson intervals. Kept: pairs of "
        "the needles asked for. Where intervals overlap, nothing is ranked.",
    )
    table.padding = (0, 0)  # one space between the columns, for the longest names
    table.add_column("policy", overflow="fold", min_width=12)
    for words in (WORDS[question_seen] for question_seen in seen):
        table.add_column(f"solved, question\n{words} [95 %]", justify="right", no_wrap=True)
        table.add_column(f"kept,\n{words}", justify="right", no_wrap=True)
    for policy in sorted(by_policy, key=lambda name: _solved(by_policy[name]), reverse=True):
        cells = (text for row in by_policy[policy].values() for text in _cells(row))
        table.add_row(printable(policy), *cells)
    return table


def _solved(rows: Mapping[bool, NeedleRow]) -> float:
    return sum(row.share or 0.0 for row in rows.values())


def _cells(row: NeedleRow) -> tuple[str, str]:
    if row.share is None or row.low is None or row.high is None:
        return MISSING, MISSING
    interval = f"[{100 * row.low:.0f}–{100 * row.high:.0f}]"
    return f"{percent(row.share)} {interval}", percent(row.needle_retained)
