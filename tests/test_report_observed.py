"""The section of a real runtime: what it says comes from the tables, and a wrong prediction is said."""

from __future__ import annotations

from pathlib import Path

import observed_tables
import polars as pl
import pytest

from kvreclaim.errors import InputError
from kvreclaim.report.folder import Folder
from kvreclaim.report.registry import sections
from kvreclaim.report.section import Section, Table
from kvreclaim.report.theme import LIGHT


def built(folder: Path) -> Section:
    (section,) = sections([Folder(folder)])
    return section


def table_of(section: Section) -> Table:
    return next(item for item in section.items if isinstance(item, Table))


def test_the_words_come_from_the_runs(tmp_path: Path) -> None:
    section = built(observed_tables.write_observed(tmp_path))
    words = " ".join(section.prose)
    # 3 requests of 140 tokens in 10 blocks of 32: two fit; three, once a request keeps 40 tokens.
    assert "tiny-model in vLLM: 3 requests of 140 tokens, 8 more" in words
    assert "With the full cache at most 2 ran at once, in 16 steps." in words
    assert "StreamingLLM, 40 kept, packed: 3, in 9 steps, 9 blocks freed." in words
    assert "StreamingLLM, 40 kept, masked only: 2, in 16 steps, 0 blocks freed." in words
    assert "equal, not close" in words
    assert "none is embedded anew" in words
    (key,) = section.key_numbers
    assert (key.value, key.evidence) == ("3, not 2", "observed in vLLM, 1 run each")
    assert table_of(section).rows[1] == (
        *("StreamingLLM, 40 kept, packed", "3", "3", "9", "9", "9", "9", "0", "0"),
        *("3.0 MiB", "✓ yes"),
    )
    assert table_of(section).tones == ("good", "good", "good")


def test_the_timelines_hold_every_step_as_observed_and_as_predicted(tmp_path: Path) -> None:
    section = built(observed_tables.write_observed(tmp_path))
    free, running = section.figures
    steps = pl.read_csv(tmp_path / "steps.csv")
    for figure, column in ((free, "free_blocks"), (running, "scheduled")):
        assert figure.controls[0].values == ("1", "2")
        chart = figure.drawings[("1",)](400, LIGHT).to_dict()
        rows = pl.DataFrame(chart["datasets"][chart["data"]["name"]])
        for run, series in ((0, "full-cache"), (1, "evicted")):
            wanted = steps.filter(run=run)[column].to_list()
            for key, kind in ((series, "observed"), (f"{series}-predicted", "simulated")):
                found = rows.filter(series=key).sort("x")
                assert found["mean"].to_list() == wanted
                assert set(found["kind"]) == {kind}


def test_a_wrong_prediction_is_said(tmp_path: Path) -> None:
    section = built(observed_tables.write_observed(tmp_path, wrong=True))
    assert "Not as predicted: StreamingLLM, 40 kept, masked only." in " ".join(section.prose)
    assert "equal, not close" not in " ".join(section.prose)
    assert table_of(section).rows[2][-1] == "✗ not free blocks end free blocks by step"
    assert table_of(section).tones == ("good", "good", "bad")


def test_a_runtime_whose_rules_are_not_known_is_shown_without_predictions(tmp_path: Path) -> None:
    section = built(observed_tables.write_observed(tmp_path, runtime="openvino"))
    assert "predict" not in " ".join(section.prose)
    assert table_of(section).columns == (
        *("Evicted", "Peak running", "Steps", "Blocks freed", "Preemptions", "Moved"),
    )
    assert "nothing is predicted" in table_of(section).caption
    assert section.figures[0].series == ("full-cache", "evicted")
    assert table_of(section).rows[1][3:5] == ("", "")


def test_a_folder_without_the_full_cache_is_refused(tmp_path: Path) -> None:
    observed_tables.write_observed(tmp_path)
    pl.read_csv(tmp_path / "runs.csv").reverse().write_csv(tmp_path / "runs.csv")
    with pytest.raises(InputError, match="no run with the full cache"):
        built(tmp_path)


def test_budgets_of_matched_quality_are_explained(tmp_path: Path) -> None:
    folder = observed_tables.write_observed(tmp_path)
    runs = pl.read_csv(folder / "runs.csv")
    matched = runs.with_columns(
        ratio=pl.when(pl.col("run") > 0).then(0.43),
        target_kl=pl.when(pl.col("run") > 0).then(0.0196),
        outside=pl.when(pl.col("run") > 0).then(pl.col("run") - 1),
    )
    matched.write_csv(folder / "runs.csv")
    words = " ".join(built(folder).prose)
    assert "matched quality" in words
    assert "a KL of 0.0196 nats" in words
    assert "only a bound: StreamingLLM, 40 kept, masked only (1)." in words
    runs.drop("ratio", "target_kl", "outside").write_csv(folder / "runs.csv")
    assert "matched quality" not in " ".join(built(folder).prose)
