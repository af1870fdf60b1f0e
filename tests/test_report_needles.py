"""Needles on the page: bars, table and findings that say no more than the table of counts."""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path
from typing import Any

import measured_tables
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_tables import FOUND, needles_of, table_of, wilson, write_measured

from kvreclaim.report import render_page, write_figures
from kvreclaim.report.folder import Folder
from kvreclaim.report.measurements import Measurements
from kvreclaim.report.section import Figure, Section, Table
from kvreclaim.report.sections import measured, measured_needles
from kvreclaim.report.theme import LIGHT, look


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_measured(tmp_path_factory.mktemp("needles"), needle_table=measured_tables.needles())


@pytest.fixture(scope="module")
def section(folder: Path) -> Section:
    return measured.build(Folder(folder))


def item(section: Section, name: str) -> Any:
    return next(found for found in section.items if getattr(found, "id", "") == name)


def findings_of(table: pl.DataFrame) -> tuple[str, ...]:
    frame = table_of(dict.fromkeys(table["policy"].unique(maintain_order=True), (0.1, 0.5)))
    return measured_needles.findings(Measurements(frame, measured_tables.EMPTY, {}, table))


def test_bars_are_the_shares_with_their_intervals(section: Section) -> None:
    figure: Figure = item(section, "measured-needles")
    assert figure.controls[0].values == ("single", "multi-key")  # nothing to draw of the one never solved
    assert "prompts of 1,024 tokens" in figure.caption
    chart = figure.drawings[("single",)](400, LIGHT).to_dict()
    rows = chart["datasets"][chart["data"]["name"]]
    drawn = {(row["row"], row["series"]): row for row in rows}
    assert len(drawn) == len(rows) == 24
    for policy, found in FOUND.items():
        for solved, series in zip(found, ("question-seen", "question-unseen"), strict=True):
            row = drawn[look(policy).label, series]
            assert (row["mean"], row["low"], row["high"]) == pytest.approx(
                (solved / 66, *wilson(solved, 66)), abs=1e-6
            )
            assert (row["n"], row["kind"]) == ("66", "measured")
            assert row["row_value"] == f"{found[0]} of 66, {found[1]} of 66"
    assert len({row["bar_at"] for row in rows}) == len(rows)


def test_the_table_has_counts_intervals_and_what_is_kept(section: Section) -> None:
    one, few, never = (cells_of(item(section, f"measured-needle-table-{place}")) for place in (1, 2, 3))
    assert len(one) == len(few) == len(never) == 12
    low, high = wilson(20, 66)
    assert one["SnapKV"]["Question unseen: solved"] == f"20 of 66: 0.30 [{low:.2f}, {high:.2f}]"
    assert one["SnapKV"]["Question seen: needle kept"] == "0.900"
    assert few["SnapKV"]["Question seen: solved"].startswith("22 of 49")
    assert never["H2O"]["Question seen: solved"] == "0 of 0 (70 trials)"
    assert never["H2O"]["Question seen: needle kept"] == ""


def cells_of(table: Table) -> dict[str, dict[str, str]]:
    return {
        row[0]: dict(
            zip(table.columns, [cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row], strict=True)
        )
        for row in table.rows
    }


def test_what_is_said_of_each_task(section: Section) -> None:
    notes = next(found for found in section.items if hasattr(found, "texts"))
    seen, unseen, few, _, never, _ = [text for text in notes.texts if text.startswith("Needles")]
    assert "question seen: the full cache solves 66 of 70 trials. With intervals apart, " in seen
    assert "question unseen: the full cache solves 66 of 70" in unseen
    assert few.endswith("solves 49 of 70 trials. On fewer than 50 no policies are ranked.")
    assert never.endswith("solves 0 of 70 trials. On these nothing can be said of any policy.")


counts = st.dictionaries(
    st.sampled_from(sorted(FOUND)), st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1
)


@given(counts, st.integers(45, 60))
def test_those_pairs_are_ranked_whose_intervals_are_apart(
    found: dict[str, tuple[int, int]], full_solved: int
) -> None:
    found = {policy: (min(a, full_solved), min(b, full_solved)) for policy, (a, b) in found.items()}
    for place, text in enumerate(findings_of(needles_of(found, full_solved=full_solved))):
        intervals = {policy: wilson(solved[place], full_solved) for policy, solved in found.items()}
        apart = {
            (look(one).label, look(other).label)
            for one, other in permutations(found, 2)
            if full_solved >= 50 and intervals[one][0] > intervals[other][1]
        }
        assert pairs_in(text, {look(policy).label for policy in found}) == apart
        assert ("no policies are ranked" in text) == (not apart)


def pairs_in(text: str, policies: set[str]) -> set[tuple[str, str]]:
    """Return the pairs that a finding ranks."""
    told = re.search(r"With intervals apart, (.*)\. All other pairs overlap", text)
    pairs: set[tuple[str, str]] = set()
    for part in told.group(1).split("; ") if told else []:
        better, worse = part.split(" more than ")
        above = set(re.split(", | and ", better))
        below = set(re.split(", | and ", worse.removeprefix("all others but ")))
        if worse.startswith("all others"):
            below = policies - above - (below if " but " in worse else set())
        new = {(one, other) for one in above for other in below}
        assert not pairs & new
        pairs |= new
    return pairs


def test_policies_of_other_ratios_are_not_compared() -> None:
    table = needles_of({"h2o": (60, 60), "knorm": (0, 0)}, full_solved=60)
    ratio = pl.when(pl.col("policy") == "h2o").then(0.25).otherwise(0.5)
    assert all("no policies are ranked" in text for text in findings_of(table.with_columns(ratio=ratio)))


@pytest.mark.parametrize("table", [None, measured_tables.needles().clear()])
def test_without_trials_there_is_nothing_of_needles(tmp_path: Path, table: pl.DataFrame | None) -> None:
    section = measured.build(Folder(write_measured(tmp_path, needle_table=table)))
    assert not any("needle" in getattr(found, "id", "") for found in section.items)
    notes = next(found for found in section.items if hasattr(found, "texts"))
    assert not any("eedle" in text for text in notes.texts)


def test_where_the_full_cache_never_finds_any_there_is_a_table_and_no_chart(tmp_path: Path) -> None:
    table = needles_of({"h2o": (0, 0)}, "multi-value", full_solved=0)
    section = measured.build(Folder(write_measured(tmp_path, needle_table=table)))
    ids = {getattr(found, "id", "") for found in section.items}
    assert "measured-needle-table-1" in ids and "measured-needles" not in ids
    render_page([tmp_path])


def test_page_and_static_figure(folder: Path, tmp_path: Path) -> None:
    page = render_page([folder])
    assert "One of four keys" in page
    assert "measured-needles.svg" in write_figures(folder, tmp_path)


def test_the_page_ranks_from_as_many_trials_as_the_library() -> None:
    retrieval = pytest.importorskip("kvreclaim.capture.quality.retrieval")
    assert retrieval.LEAST_SOLVED == measured_needles.LEAST_SOLVED
    needle = pytest.importorskip("kvreclaim.capture.quality.needle")
    assert set(measured_needles._TASKS) == set(needle.TASKS)
