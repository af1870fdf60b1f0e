"""The report: sections from tiny tables, charts that draw what the tables say, colours that all can tell."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import advice_tables
import measured_tables
import observed_tables
import polars as pl
import pytest
import report_tables

from kvreclaim.report.folder import Folder
from kvreclaim.report.registry import sections
from kvreclaim.report.section import Control, Figure, Notes, Section, Table
from kvreclaim.report.theme import LIGHT
from kvreclaim.report.wording import (
    evidence,
    fixed,
    mebibytes,
    number,
    percent,
    percent_with_spread,
    with_spread,
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_tables.write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_tables.write_audit(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured_tables.write_measured(tmp_path_factory.mktemp("measured"))


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return observed_tables.write_observed(tmp_path_factory.mktemp("observed"))


@pytest.fixture(scope="module")
def advice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return advice_tables.write_advice(tmp_path_factory.mktemp("advice"))


@pytest.fixture(scope="module")
def built(study: Path, audit: Path, measured: Path, observed: Path, advice: Path) -> dict[str, Section]:
    folders = [Folder(advice), Folder(observed), Folder(measured), Folder(audit), Folder(study)]
    return {section.id: section for section in sections(folders)}


def figure(built: dict[str, Section], name: str) -> Figure:
    return next(found for section in built.values() for found in section.figures if found.id == name)


def rows_of(drawn: Figure, values: tuple[str, ...] | None = None) -> list[dict[str, Any]]:
    """Return the rows that a figure's chart draws."""
    chart = (drawn.default if values is None else drawn.drawings[values])(400, LIGHT).to_dict()
    return list(chart["datasets"][chart["data"]["name"]])


# Sections


def test_sections_follow_the_order_of_the_post_whatever_the_order_of_the_folders(
    built: dict[str, Section],
) -> None:
    order = [
        "blocks",
        "bound",
        "shapes",
        "strategies",
        "correlation",
        "compaction",
        "admission",
        "masks",
        "measured",
        "observed",
        "advice",
        "published",
    ]
    assert list(built) == order


def test_prose_and_key_numbers_come_from_the_tables(built: dict[str, Section]) -> None:
    assert "0.4700 ± 0.0200 of the blocks" in built["shapes"].prose[1]
    keys = [key for section in built.values() for key in section.key_numbers]
    assert ("0.0015 %", "closed form") in [(key.value, key.evidence) for key in keys]
    assert ("47.0 ± 2.0 %", "simulated, n = 30") in [(key.value, key.evidence) for key in keys]


def test_no_number_is_missing_from_the_words(built: dict[str, Section]) -> None:
    for section in built.values():
        words = " ".join([*section.prose, *(found.caption for found in section.figures)])
        assert not re.search(r"\b(nan|None|undefined)\b", words)


def test_faults_stand_in_the_section_that_they_touch(built: dict[str, Section]) -> None:
    notes = {
        name: [item for item in section.items if hasattr(item, "texts")] for name, section in built.items()
    }
    assert [note.texts for note in notes["shapes"]] == [(report_tables.FAULT,)]
    assert notes["bound"] == []


def test_published_statuses_have_a_mark_and_a_word(built: dict[str, Section]) -> None:
    (table,) = built["published"].items
    assert isinstance(table, Table)
    assert [row[-1] for row in table.rows] == ["✓ exact", "✓ within", "≈ compatible", "✗ not reproduced"]
    assert table.tones == ("good", "good", "fair", "bad")
    assert "1 exact" in built["published"].prose[0]


def test_masks_are_ranked_by_the_shared_table(built: dict[str, Section]) -> None:
    ledger = next(item for item in built["masks"].items if isinstance(item, Table))
    assert [row[0] for row in ledger.rows] == ["streaming-llm", "snapkv", report_tables.HOSTILE]
    assert ledger.rows[0][2] == "0.102 ± 0.008"  # 6 and 7 blocks of 64 in the two files


def test_an_audit_of_some_tables_and_sizes_still_has_its_section(tmp_path: Path) -> None:
    folder = report_tables.write_audit(tmp_path)
    table = pl.read_csv(folder / "audit.csv").filter(pl.col("block_tables") == "per_layer")
    larger = table.with_columns(block_size=pl.lit(32, dtype=pl.Int64))
    pl.concat([table, larger]).write_csv(folder / "audit.csv")
    (section,) = sections([Folder(folder)])
    assert [found.id for found in section.figures] == ["masks-tables"]
    assert section.figures[0].controls[0].values == ("16", "32")
    assert section.key_numbers == ()


def test_a_figure_needs_a_drawing_for_every_combination_of_its_controls() -> None:
    control = Control("scale", "Scale", (("linear", "Linear"), ("log", "Logarithmic")))
    with pytest.raises(ValueError, match="figure f"):
        Figure("f", "", "", {("linear",): partial(pytest.fail)}, controls=(control,))


def _altered_audit(folder: Path, **columns: pl.Expr) -> dict[str, Any]:
    """Return the masks section of an audit with some columns altered, by the ids of its items."""
    report_tables.write_audit(folder)
    pl.read_csv(folder / "audit.csv").with_columns(**columns).write_csv(folder / "audit.csv")
    (section,) = sections([Folder(folder)])
    return {"section": section, **{item.id: item for item in section.items if not isinstance(item, Notes)}}


def test_masks_of_unknown_origin_name_no_model(built: dict[str, Section], tmp_path: Path) -> None:
    assert built["masks"].title == "Keep masks of tiny-model, audited"
    section = _altered_audit(tmp_path, model=pl.lit(None), ratio=pl.lit(None))["section"]
    assert section.title == "Keep masks, audited"
    assert "30 layers, 3 KV heads, 1,024 tokens; the files name no model." in section.prose[0]
    assert "counted on the masks given" in section.prose[0]
    assert "real model" not in " ".join([*section.prose, section.key_numbers[0].label])


def test_masks_of_other_shapes_are_not_pooled_and_one_mask_has_no_spread(tmp_path: Path) -> None:
    other = pl.col("file") == "b.npz"
    found = _altered_audit(tmp_path, tokens=pl.when(other).then(2048).otherwise("tokens"))
    names = [row[0] for row in found["masks-ledger"].rows]
    assert names[:2] == ["streaming-llm, 30 × 3 × 2048", "streaming-llm, 30 × 3 × 1024"]
    assert [row[-1] for row in found["masks-ledger"].rows] == ["1"] * 6
    assert not any("±" in cell for row in found["masks-ledger"].rows for cell in row)
    rows = rows_of(found["masks-tables"], ("16",))
    assert {row["n"] for row in rows} == {"1"}
    assert not any("±" in row["value"] + row["row_value"] for row in rows)
    assert "2 shapes" in found["section"].prose[0]
    assert found["section"].key_numbers[0].evidence == "measured, 1 mask per policy"


def test_the_bytes_of_a_bound_are_its_own(tmp_path: Path) -> None:
    folder = report_tables.write_study(tmp_path)
    table = pl.read_csv(folder / "results_summary.csv", infer_schema_length=None)
    bound = report_tables.closed("compaction", "random", 0.5, "moved_tokens_lower_bound", 1600.0)
    pl.concat([table, pl.DataFrame([bound])]).write_csv(folder / "results_summary.csv")
    built = {section.id: section for section in sections([Folder(folder)])}
    for scale, role in (("linear", "bar"), ("log", "dot")):
        rows = rows_of(figure(built, "compaction-moves"), (scale,))
        values = {row["role"]: row["value"] for row in rows if row["row"] == "Random"}
        assert values == {role: "1,647.0 ± 0.2 (205.9 MiB)", "mark": "1,600 (200.0 MiB)"}


def test_a_small_number_in_a_column_does_not_read_as_nothing() -> None:
    assert fixed(5.8e-5, 8.2e-5) == "0.00006 ± 0.00008"
    assert (fixed(0.0, 0.0), fixed(0.25, None)) == ("0.000 ± 0.000", "0.250")
    assert percent_with_spread(0.47, 0.02178) == "47.0 ± 2.2 %"


# Charts


def test_bars_are_the_means_and_diamonds_the_closed_forms(built: dict[str, Section]) -> None:
    rows = rows_of(figure(built, "shapes-reclaim"))
    bars = {row["series"]: row for row in rows if row["role"] == "bar"}
    assert bars["streaming-llm"]["mean"] == pytest.approx(0.47)
    assert (bars["streaming-llm"]["low"], bars["streaming-llm"]["high"]) == pytest.approx((0.45, 0.49))
    assert bars["streaming-llm"]["value"] == "0.4700 ± 0.0200"
    diamonds = {row["series"]: row["mean"] for row in rows if row["role"] == "mark"}
    assert set(diamonds) == {"streaming-llm", "h2o", "random"}
    assert diamonds["streaming-llm"] == pytest.approx(0.4747)


def test_a_row_that_its_series_does_not_name_is_named(built: dict[str, Section]) -> None:
    columns = {
        name: figure(built, name).default(400, LIGHT).to_dict()["usermeta"]["columns"]
        for name in ("masks-tables", "shapes-reclaim")
    }
    assert columns["masks-tables"][:2] == [["Policy", "row"], ["Series", "label"]]
    assert columns["shapes-reclaim"][0] == ["Series", "label"]


def test_the_naming_cells_tell_all_rows_of_a_values_table_apart(built: dict[str, Section]) -> None:
    for found in (found for section in built.values() for found in section.figures):
        for drawing in found.drawings.values():
            chart = drawing(400, LIGHT).to_dict()
            fields = {"row", "label", "x_text", "kind", "asked"}
            naming = [field for _, field in chart["usermeta"]["columns"] if field in fields]
            rows = chart["datasets"][chart["data"]["name"]]
            named = [tuple(row[field] for field in naming) for row in rows]
            assert len(set(named)) == len(named), found.id
            assert not any("undefined" in str(row[field]) for row in rows for field in ("value", "n"))


def test_few_free_blocks_are_a_count_with_its_interval(study: Path, tmp_path: Path) -> None:
    copy = report_tables.write_study(tmp_path)
    rare = [
        report_tables.row("shapes", "h2o", 16.0, f"free_blocks_{part}", value, 0.0, x_name="block_size")
        for part, value in (("total", 2.0), ("low", 0.24), ("high", 7.22))
    ]
    table = pl.read_csv(copy / "results_summary.csv", infer_schema_length=None)
    table = table.filter(~((pl.col("policy") == "h2o") & (pl.col("metric") == "free_blocks_total")))
    pl.concat([table, pl.DataFrame(rare)]).write_csv(copy / "results_summary.csv")
    built = {section.id: section for section in sections([Folder(copy)])}
    rows = rows_of(figure(built, "shapes-reclaim"))
    words = {row["series"]: row["row_value"] for row in rows if row["role"] == "bar"}
    assert words["h2o"] == "2 blocks (95 %: 0.24–7.2)"
    assert words["streaming-llm"] == "0.4700 ± 0.0200"
    assert "2 blocks (95 %: 0.24–7.2) in all runs" in built["shapes"].prose[1]


def test_the_switch_changes_every_figure_of_the_strategies(built: dict[str, Section]) -> None:
    for found in built["strategies"].figures:
        assert found.controls[0].id == "distribution"
    tradeoff = figure(built, "strategies-tradeoff")
    losses = {
        name: next(row["mean"] for row in rows_of(tradeoff, (name,)) if row["series"] == "block-wise")
        for name in ("lognormal", "uniform")
    }
    assert losses == pytest.approx({"lognormal": 0.38, "uniform": 0.41})


def test_the_tradeoff_draws_the_frontier_and_deviations_of_both_numbers(built: dict[str, Section]) -> None:
    rows = rows_of(figure(built, "strategies-tradeoff"))
    assert sum(row["series"] == "minimum-loss" for row in rows) == 17
    block_wise = next(row for row in rows if row["series"] == "block-wise")
    assert block_wise["right"] - block_wise["left"] == pytest.approx(0.02)
    assert block_wise["high"] - block_wise["low"] == pytest.approx(0.02)


def test_stacked_bars_join_and_end_at_the_sum(built: dict[str, Section]) -> None:
    hole = [row for row in rows_of(figure(built, "compaction-sources")) if row["row"] == "One clustered hole"]
    assert [(row["start"], row["mean"]) for row in hole] == [(0.0, 255.1), (255.1, 256.0)]
    assert hole[1]["value"] == "0.9000 ± 0.2000"


def test_a_pattern_without_copies_says_so_instead_of_a_ratio(built: dict[str, Section]) -> None:
    rows = rows_of(figure(built, "compaction-slots-per-move"))
    block_wise = [row for row in rows if row["row"] == "Block-wise"]
    assert [(row["role"], row["mean"], row["row_value"]) for row in block_wise] == [
        ("none", None, "no copy needed: no ratio")
    ]


@pytest.mark.parametrize(
    ("name", "first"), [("bound-reclaim", "linear"), ("compaction-slots-per-move", "log")]
)
def test_scales_are_those_that_the_control_names(built: dict[str, Section], name: str, first: str) -> None:
    found = figure(built, name)
    assert found.controls[0].values[0] == first
    for values, drawing in found.drawings.items():
        text = json.dumps(drawing(400, LIGHT).to_dict())
        assert ('"type": "log"' in text) == (values[0] == "log")


# Words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0"),
        (32.0, "32"),
        (1646.21, "1,646.2"),
        (22.65, "22.65"),
        (0.47, "0.4700"),
        (-0.0016, "−0.0016"),
        (1.526e-5, "1.53 × 10⁻⁵"),
        (float("nan"), "undefined"),
        (None, "undefined"),
    ],
)
def test_numbers_in_words(value: float | None, words: str) -> None:
    assert number(value) == words


def test_spreads_percentages_and_evidence_in_words() -> None:
    assert with_spread(22.7, 0.458) == "22.70 ± 0.46"
    assert with_spread(32.0, 0.0) == "32 ± 0"
    assert with_spread(0.0007, 0.0036) == "0.0007 ± 0.0036"
    assert with_spread(0.5, None) == "0.5000"
    assert (percent(1.526e-5), percent(0.47), percent(0.0)) == ("0.0015 %", "47 %", "0 %")
    assert mebibytes(1649 * 131072) == "206.1 MiB"
    assert evidence("simulated", 30) == "simulated, n = 30"
    assert evidence("closed form, lower bound", 1) == "closed form, lower bound"
