"""The section of a runtime at matched quality: the study's open step, answered from the tables."""

from __future__ import annotations

import json
from pathlib import Path

import observed_tables
import polars as pl
import pytest

from kvreclaim.errors import InputError
from kvreclaim.report.folder import Folder
from kvreclaim.report.registry import sections
from kvreclaim.report.section import Section, Table


def built(folder: Path) -> tuple[Section, ...]:
    return sections([Folder(folder)])


def test_it_stands_before_the_section_of_the_same_runs(tmp_path: Path) -> None:
    matched, observed = built(observed_tables.write_matched(tmp_path))
    assert (matched.id, observed.id) == ("matched", "observed")
    assert matched.title == "In vLLM, at matched quality"


def test_the_words_and_the_table_come_from_the_runs(tmp_path: Path) -> None:
    matched, _ = built(observed_tables.write_matched(tmp_path))
    words = " ".join(matched.prose)
    assert "a KL of 0.0200 nats" in words
    # Of 5 blocks H2O packs 40 pairs into 2; of StreamingLLM's, of tokens 0 to 3 and 74 to 139, 1 is dead.
    assert "With the full cache 2 requests run at once." in words
    assert "With packing: H2O 3 at once, 3 blocks back each." in words
    assert "Without a copy: StreamingLLM 2 at once, 1 blocks back each." in words
    assert "nothing may be evicted at this quality by TOVA, packed." in words
    assert "(how many): StreamingLLM, whole dead blocks freed (1); there the budget is a bound." in words
    (table,) = matched.items
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == [
        "Full cache",
        "H2O, packed",
        "StreamingLLM, whole dead blocks freed",
        "TOVA, packed",
    ]
    assert table.rows[0][1:] == ("", "all", "0", "2", "16", "0.0 MiB", "0", "✓ yes")
    assert table.rows[1][1:4] == ("72 %", "40", "3")
    assert table.rows[1][6:8] == ("1.0 MiB", "0.0210 [0.0071, 0.0440]")
    assert table.rows[3][1:] == ("0 %", *"–" * 7)
    assert table.tones == ("good", "good", "good", "")
    (key,) = matched.key_numbers
    assert key.value.endswith(", not 2")


def test_a_run_that_did_not_go_as_predicted_is_marked(tmp_path: Path) -> None:
    folder = observed_tables.write_matched(tmp_path, wrong=True)
    (table,) = built(folder)[0].items
    assert isinstance(table, Table)
    assert table.rows[2][-1] == "✗ not free blocks end free blocks by step"
    assert table.tones[2] == "bad"


def test_without_its_budgets_the_folder_is_refused(tmp_path: Path) -> None:
    folder = observed_tables.write_matched(tmp_path)
    (folder / "budgets.csv").unlink()
    with pytest.raises(InputError, match=r"budgets\.csv"):
        built(folder)


def test_a_run_that_is_missing_is_not_one_that_keeps_all(tmp_path: Path) -> None:
    folder = observed_tables.write_matched(tmp_path)
    for name in ("runs", "steps", "evictions"):
        pl.read_csv(folder / f"{name}.csv").filter(pl.col("run") != 1).write_csv(folder / f"{name}.csv")
    with pytest.raises(InputError, match=r"runs\.csv has \d+ rows, and \d+ were written"):
        built(folder)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "rows": {}}))
    with pytest.raises(InputError, match="has no run of H2O, packed"):
        built(folder)
