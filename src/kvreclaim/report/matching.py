"""The medians of ``matched.csv``, held to the prompts of ``matched_prompts.csv`` that they are of."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.report.relations import agree

MEDIANS = ("target_kl", "ratio", "retained")
COUNTS = {"reached": "inside", "below": "below", "above": "above"}
"""Counts of prompts, and what such a prompt has as ``reached``."""


def check_matched(folder: Path, matched: pl.DataFrame, prompts: pl.DataFrame) -> None:
    """Raise InputError where a median or a count of prompts is not that of the prompts.

    Parameters
    ----------
    folder
        Of both tables, for the line that refuses.
    matched, prompts
        ``matched.csv`` and ``matched_prompts.csv``; without prompts nothing is said.
    """
    known = [column for column in MEDIANS if column in prompts.columns]
    of_policy = {key: part for (key,), part in prompts.group_by("policy")}
    for place, row in enumerate(matched.iter_rows(named=True), start=1):
        part = of_policy.get(row["policy"])
        if part is None:
            continue
        medians = part.select(pl.col(known).median()).row(0, named=True)
        counts = {column: part.filter(reached=kind).height for column, kind in COUNTS.items()}
        wanted: dict[str, float | None] = {**medians, **counts}
        for column, value in wanted.items():
            if not agree(row[column], value):
                raise InputError(
                    f"{folder / 'matched.csv'} has {row[column]} as {column!r} in row {place}, and "
                    f"matched_prompts.csv says {value}: pass a folder that kvreclaim wrote, whole"
                )


def check_needles(folder: Path, needles: pl.DataFrame) -> None:
    """Raise InputError where policies of one task were tried on other trials than each other.

    They are tried on what the full cache solves, each on all of it.
    """
    first: dict[tuple[str, bool], dict[str, int]] = {}
    for place, row in enumerate(needles.iter_rows(named=True), start=1):
        counts = {column: row[column] for column in ("trials", "full_solved")}
        wanted = first.setdefault((row["task"], row["question_seen"]), counts)
        for column, value in wanted.items():
            if row[column] != value:
                raise InputError(
                    f"{folder / 'needles.csv'} has {row[column]} as {column!r} in row {place}, and another "
                    f"policy of the same task {value}: pass a folder that kvreclaim wrote, whole"
                )
