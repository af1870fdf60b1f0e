"""Damaged results folders: a page, or one line that names the folder; never a traceback."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measured_tables
import observed_tables
import pytest
import report_tables

from kvreclaim.errors import InputError
from kvreclaim.report import render_page
from kvreclaim.report.folder import Folder

Write = Callable[[Path], Path]
AUDIT, STUDY, MEASURED = report_tables.write_audit, report_tables.write_study, measured_tables.write_measured
OBSERVED, MATCHED = observed_tables.write_observed, observed_tables.write_matched
# Damages of a folder: each renders a page.
CASES = [(AUDIT, 40), (MEASURED, 20), (STUDY, 4), (OBSERVED, 30), (MATCHED, 30)]
CELLS = ["", "0", "-1", "x", "inf", "NaN", "1e999", "9" * 20, "2147483647", "[]", '"']
VALUES = [None, 0, -1, 2**31 - 1, 1.5, float("inf"), "x", "", [], {}, [1], True]


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        render_page([folder])
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert str(folder) in message
    for word in words:
        assert word in message


def with_lines(file: Path, change: Callable[[list[str]], list[str]]) -> None:
    file.write_text("".join(change(file.read_text().splitlines(keepends=True))))


def with_cell(file: Path, row: int, column: str, value: str) -> None:
    lines = [line.split(",") for line in file.read_text().splitlines()]
    lines[row][lines[0].index(column)] = value
    file.write_text("\n".join(",".join(line) for line in lines) + "\n")


def with_json(file: Path, place: tuple[str | int, ...], value: Any) -> None:
    whole = json.loads(file.read_text())
    inner = whole
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    file.write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("write", "name", "row", "column", "value"),
    [
        (AUDIT, "audit.csv", 2, "block_size", ""),
        (AUDIT, "audit.csv", 2, "block_size", "0"),
        (AUDIT, "audit.csv", 1, "physical_reclaim", "inf"),
        (AUDIT, "audit.csv", 1, "tokens", "many"),
        (MEASURED, "matched.csv", 3, "below", ""),
        (MEASURED, "measured.csv", 3, "physical_reclaim", ""),
        (MEASURED, "measured.csv", 3, "kl", "inf"),
        (STUDY, "published.csv", 1, "published", ""),
        (AUDIT, "audit.csv", 1, "logical_saving", "1.5"),
        (AUDIT, "audit.csv", 2, "free_blocks", "-1"),
        (MEASURED, "measured.csv", 2, "ratio", "1.5"),
        (MEASURED, "measured.csv", 2, "kl", "-0.5"),
        (MEASURED, "matched.csv", 2, "reached", "-3"),
        (OBSERVED, "runs.csv", 2, "observed_blocks_freed", "-3"),
        (OBSERVED, "runs.csv", 2, "budget", "0"),
        (OBSERVED, "steps.csv", 2, "free_blocks", "-1"),
        (MATCHED, "budgets.csv", 1, "ratio", "1.5"),
        (MATCHED, "runs.csv", 2, "ratio", "1.5"),
        (MATCHED, "runs.csv", 2, "outside", "-1"),
        (MATCHED, "runs.csv", 2, "kl_effective", "-1"),
        (STUDY, "results_summary.csv", 1, "kind", ""),
    ],
)
def test_a_cell_without_a_value_that_is_needed(
    tmp_path: Path, write: Write, name: str, row: int, column: str, value: str
) -> None:
    folder = write(tmp_path / "damaged")
    with_cell(folder / name, row, column, value)
    refused(folder, name, column)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (MEASURED, "measured.csv"),
        (MEASURED, "matched.csv"),
        (STUDY, "published.csv"),
        (OBSERVED, "runs.csv"),
        (OBSERVED, "steps.csv"),
        (MATCHED, "budgets.csv"),
    ],
)
def test_a_row_that_is_there_twice(tmp_path: Path, write: Write, name: str) -> None:
    folder = write(tmp_path / "damaged")
    with_lines(folder / name, lambda lines: [*lines, lines[2]])
    refused(folder, name, "has two rows of")


@pytest.mark.parametrize(
    ("write", "name", "row"),
    [(MEASURED, "measured.csv", 3), (OBSERVED, "steps.csv", 5), (AUDIT, "audit.csv", 1)],
)
def test_a_row_that_breaks_off_before_others(tmp_path: Path, write: Write, name: str, row: int) -> None:
    folder = write(tmp_path / "damaged")
    with_lines(
        folder / name,
        lambda lines: [*lines[:row], lines[row].rpartition(",")[0] + "\n", *lines[row + 1 :]],
    )
    refused(folder, name, f"in row {row}", "columns")


def test_steps_that_are_not_those_of_the_runs(tmp_path: Path) -> None:
    """Also where nobody counted the rows, as in a folder of an earlier version."""
    folder = OBSERVED(tmp_path / "damaged")
    with_json(folder / "run.json", ("rows",), {})
    with_lines(folder / "steps.csv", lambda lines: lines[:-1])
    refused(folder, "steps.csv", "has 15 steps of run 2, and runs.csv 16")


def test_a_table_with_fewer_rows_than_were_written(tmp_path: Path) -> None:
    folder = observed_tables.write_observed(tmp_path / "damaged")
    with_lines(folder / "steps.csv", lambda lines: lines[:-1])
    refused(folder, "steps.csv has 40 rows, and 41 were written")


@pytest.mark.parametrize(
    ("write", "name"), [(AUDIT, "audit.csv"), (MEASURED, "matched.csv"), (STUDY, "published.csv")]
)
def test_a_table_that_ends_in_a_row(tmp_path: Path, write: Write, name: str) -> None:
    folder = write(tmp_path / "damaged")
    file = folder / name
    file.write_bytes(file.read_bytes().rstrip()[:-30].rpartition(b",")[0])
    refused(folder, name)


def test_tables_that_contradict_each_other(tmp_path: Path) -> None:
    """A policy without a row of the widest kind of table has no place among the others."""
    folder = AUDIT(tmp_path / "damaged")
    with_lines(
        folder / "audit.csv",
        lambda lines: [line for line in lines if not ("snapkv" in line and "shared" in line)],
    )
    refused(folder, "its tables don't fit together", "run `kvreclaim audit` again")


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("interactive_data.json", ("block_maps", 0, "block_size"), 0),
        ("interactive_data.json", ("block_maps", 0, "block_size"), "16"),
        ("interactive_data.json", ("block_maps", 0, "frames", 0, "tokens"), float("inf")),
        ("interactive_data.json", ("block_maps", 0, "frames", 0, "compression_ratio"), float("nan")),
        ("interactive_data.json", ("block_maps", 0, "title"), 7),
        ("interactive_data.json", ("block_maps",), 7),
        ("run.json", ("kinds",), [3]),
        ("run.json", ("kinds",), "measured"),
        ("run.json", ("versions",), {"numpy": 2}),
        ("run.json", ("parameters",), []),
        ("run.json", ("command",), 4),
    ],
)
def test_json_of_another_shape(tmp_path: Path, name: str, place: tuple[str | int, ...], value: Any) -> None:
    folder = AUDIT(tmp_path / "damaged")
    with_json(folder / name, place, value)
    refused(folder, name)


def places(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*place, key)
        yield from places(item, (*place, key))


def damage(file: Path, choose: random.Random) -> None:
    """Cut a file, or drop rows, change a cell, or change a value of its JSON."""
    content = file.read_text()
    kind = choose.choice(["cut", "rows", "value", "value"])
    if kind == "cut":
        file.write_text(content[: choose.randrange(len(content))])
    elif file.suffix == ".json":
        found = list(places(json.loads(content)))
        shallow = [place for place in found if len(place) <= 3]
        with_json(file, choose.choice(choose.choice([shallow, found])), choose.choice(VALUES))
    elif kind == "rows":
        share = choose.random()
        with_lines(file, lambda lines: lines[:1] + [line for line in lines[1:] if choose.random() < share])
    else:
        lines = content.splitlines()
        with_cell(
            file, choose.randrange(1, len(lines)), choose.choice(lines[0].split(",")), choose.choice(CELLS)
        )


@pytest.mark.parametrize(("write", "cases"), CASES)
def test_whatever_is_damaged_gives_a_page_or_one_line(tmp_path: Path, write: Write, cases: int) -> None:
    choose = random.Random(0)  # noqa: S311 (the same damages in every run)
    folder = write(tmp_path / "damaged")
    whole = {file: file.read_bytes() for file in sorted(folder.iterdir())}
    lines = 0
    for _ in range(cases):
        file = choose.choice(list(whole))
        damage(file, choose)
        try:
            render_page([folder])
        except InputError as error:
            lines += 1
            assert len(str(error).splitlines()) == 1, str(error)
            assert str(folder) in str(error)
        file.write_bytes(whole[file])
    assert lines, "some damages matter"


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    """Half a character in the folder's name, in a mask's name and in what the run was called with."""
    folder = AUDIT(tmp_path / "plain").rename(tmp_path / os.fsdecode(b"sur\xff"))
    with_json(folder / "interactive_data.json", ("block_maps", 0, "title"), "half \udcff")
    with_json(folder / "run.json", ("parameters",), {"files": ["\udcff.npz"]})
    text = render_page([folder, AUDIT(tmp_path / "again"), folder])
    assert text.encode()
    assert r"half \udcff" in text
    assert r"\udcff.npz" in text
    assert r"sur\udcff" in text


def test_a_folder_whose_name_is_a_pattern(tmp_path: Path) -> None:
    AUDIT(tmp_path / "ab")
    folder = AUDIT(tmp_path / "plain", policies=("mine",)).rename(tmp_path / "a*")
    assert set(Folder(folder).table("audit.csv")["policy"]) == {"mine"}
