"""The section "On a real model": charts and tables of what was measured, findings true of any tables."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import measured_tables
import polars as pl
import pytest
from measured_tables import write_measured

from kvreclaim.errors import InputError
from kvreclaim.report import render_page, write_figures
from kvreclaim.report.folder import Folder
from kvreclaim.report.registry import sections
from kvreclaim.report.section import BlockMaps, Figure, Notes, Section, Table
from kvreclaim.report.theme import LIGHT, SERIES, look

HOSTILE = "<script>alert(2)</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_measured(tmp_path_factory.mktemp("measured"))


@pytest.fixture(scope="module")
def section(folder: Path) -> Section:
    return section_of(folder)


def section_of(folder: Path) -> Section:
    (section,) = sections([Folder(folder)])
    return section


def item(section: Section, name: str) -> Any:
    return next(found for found in section.items if getattr(found, "id", "") == name)


def rows_of(figure: Figure, *values: str) -> list[dict[str, Any]]:
    chart = figure.drawings[values](400, LIGHT).to_dict()
    return list(chart["datasets"][chart["data"]["name"]])


def column(table: Table, title: str) -> dict[str, str]:
    place = table.columns.index(title)
    return {row[0]: row[place].replace("\N{NO-BREAK SPACE}", " ") for row in table.rows}


# What is shown


def test_the_section_follows_the_masks_and_says_when_it_was_measured(section: Section) -> None:
    assert (section.id, section.title) == ("measured", "On a real model")
    assert section.provenance == "Measured on 2026-03-04 with kvreclaim 0.2.0, torch 2.13.0"
    assert [found.id for found in section.figures] == [
        "measured-tradeoff",
        "measured-copies",
        "measured-matched",
        "measured-saving",
        "measured-block-size",
    ]
    words = " ".join([*section.prose, *(found.caption for found in section.figures)])
    assert not re.search(r"\b(nan|None|undefined|null)\b", words)


@pytest.mark.parametrize("tables", ["shared", "per_layer", "per_head"])
def test_points_of_the_tradeoff_are_means_with_both_spreads_in_words(section: Section, tables: str) -> None:
    here = measured_tables.measured().filter(block_tables=tables, block_size=16, policy="snapkv", ratio=0.5)
    row = next(
        row
        for row in rows_of(item(section, "measured-tradeoff"), tables)
        if (row["series"], row["asked"]) == ("snapkv", "0.5000")
    )
    assert row["mean"] == pytest.approx(here["kl"].mean())
    assert row["x"] == pytest.approx(here["physical_reclaim"].mean())
    assert (row["kind"], row["n"], row["retained"]) == ("measured", "5", "0.5000")
    assert row["value"] == f"{here['kl'].mean():.4f} ± {here['kl'].std(ddof=0):.4f}"
    reclaim, spread = here["physical_reclaim"].mean(), here["physical_reclaim"].std(ddof=0)
    assert row["x_text"] == ("0 ± 0" if tables == "shared" else f"{reclaim:.4f} ± {spread:.4f}").replace(
        "0 ± 0", "0 ± 0"
    )


def test_a_line_of_the_tradeoff_joins_its_points_by_the_ratio(section: Section) -> None:
    figure = item(section, "measured-tradeoff")
    chart = figure.default(400, LIGHT).to_dict()
    line = next(layer for layer in chart["layer"] if layer["mark"]["type"] == "line")
    assert line["encoding"]["order"]["field"] == "order"
    assert [row["order"] for row in rows_of(figure, "shared") if row["series"] == "h2o"] == list(
        measured_tables.RATIOS
    )
    assert '"type": "log"' in json.dumps(chart)


@pytest.mark.parametrize("harm", [1e-9, 1e-5, 0.001, 0.0123, 1.0, 7.0])
def test_the_axis_of_the_harm_holds_every_point_and_has_ticks(tmp_path: Path, harm: float) -> None:
    frame = measured_tables.measured().with_columns(kl=harm * (1 + pl.col("ratio")))
    figure = item(section_of(write_measured(tmp_path, frame)), "measured-tradeoff")
    y = figure.default(400, LIGHT).to_dict()["layer"][0]["encoding"]["y"]
    start, end = y["scale"]["domain"]
    assert 0.3 * harm < start <= 1.1 * harm
    assert 1.9 * harm < end < 6 * harm
    assert len(y["axis"]["values"]) >= 2


def test_bars_at_matched_quality_are_the_medians_of_the_table(section: Section) -> None:
    figure = item(section, "measured-matched")
    assert "the range over 5 prompts" in figure.spread
    for tables in ("shared", "per_layer", "per_head"):
        wanted = measured_tables.matched().filter(block_tables=tables)
        drawn = {(row["row"], row["series"]): row for row in rows_of(figure, tables)}
        assert len(drawn) == wanted.height == 36
        for row in wanted.iter_rows(named=True):
            series = {"zero_copy": "at-eviction", "compaction": "after-compaction", "packing": "by-packing"}
            bar = drawn[look(row["policy"]).label, series[row["remedy"]]]
            assert (bar["mean"], bar["low"], bar["high"]) == pytest.approx(
                (row["physical_reclaim"], row["low"], row["high"])
            )
    words = {row["row"]: row["row_value"] for row in rows_of(figure, "shared")}
    assert words["SnapKV"] == "ratio 0.50"
    assert words["H2O"] == "ratio ≥ 0.90 (3 of 5 outside)"
    assert words["Random"] == "ratio < 0.10 (5 of 5 outside)"


def test_no_two_bars_of_a_group_lie_on_each_other(section: Section) -> None:
    rows = rows_of(item(section, "measured-matched"), "shared")
    assert len({row["bar_at"] for row in rows}) == len(rows)


def test_the_block_size_and_the_logical_saving_are_drawn_beside(section: Section) -> None:
    rows = rows_of(item(section, "measured-block-size"), "per_head")
    assert {row["x"] for row in rows} == {8, 16, 32, 64}
    assert [row["mean"] for row in rows if row["series"] == "logical-saving"] == pytest.approx([0.5] * 4)
    saving = rows_of(item(section, "measured-saving"), "shared")
    diagonal = [row for row in saving if row["series"] == "logical-saving"]
    assert [(row["x"], row["mean"]) for row in diagonal] == [(0, 0), (1, 1)]
    assert {row["kind"] for row in saving if row["series"] == "h2o"} == {"measured"}


def test_the_ledger_at_a_half_is_the_table(section: Section) -> None:
    ledger = item(section, "measured-ledger")
    assert len(ledger.rows) == 12
    assert ledger.rows[0][0] == "StreamingLLM"
    assert column(ledger, "Reclaim, shared table")["ChunkKV-16 (SnapKV)"] == "0.089 ± 0.008"
    assert column(ledger, "Reclaim, a table per head")["SnapKV"] == "0.224 ± 0.019"
    assert column(ledger, "Top-1 agreement")["Random"] == "0.605 ± 0.034"
    assert column(ledger, "Retained")["H2O"] == "0.500 ± 0.000"


def test_the_matched_table_has_intervals_bytes_and_requests(section: Section) -> None:
    table = item(section, "measured-matched-table")
    assert column(table, "Shared table, packed")["SnapKV"] == "0.500 [0.450, 0.550]"
    assert column(table, "Ratio")["Random"] == "< 0.10 (5 of 5 outside)"
    assert column(table, "MiB moved to pack (of 45.0)")["SnapKV"] == "3.8"  # 2048 tokens, 23,040 bytes each
    admitted = column(table, "Requests admitted: no copy, compacted, packed")
    assert admitted["SnapKV"] == "0, 0, 32"
    assert "requests of 128 tokens" in table.caption


def test_gibibytes_are_shares_times_the_pool(section: Section) -> None:
    table = item(section, "measured-gib")
    assert column(table, "Logical saving")["H2O"] == "28.5"
    assert column(table, "No copy")["StreamingLLM"] == "28.0"
    assert column(table, "No copy")["H2O"] == "0.0"
    # 20,000 of 90 · 2,048 pairs; 8 MB · .9 of 45 MiB
    assert column(table, "Moved to pack")["H2O"] == f"{57 * 20_000 / (90 * 2048):.1f}" == "6.2"
    assert column(table, "Matched: moved to pack")["H2O"] == f"{57 * 7.2e6 / (45 * 2**20):.1f}"
    assert "Arithmetic" in table.caption
    values = {key.value for key in section.key_numbers}
    assert values == {"10 of 12", "0.0 GiB of 28.5 GiB"}


def test_block_maps_are_chosen_by_policy_and_view(section: Section) -> None:
    maps = item(section, "measured-map")
    assert isinstance(maps, BlockMaps)
    assert maps.views == ("all layers and heads", "layer 2", "layer 2, head 0")
    assert [found["title"] for found in maps.maps[::3]] == ["StreamingLLM", "Ada-KV (SnapKV)"]


def test_policies_of_one_chart_differ_in_look() -> None:
    looks = [(look(policy).light, look(policy).dash) for policy in measured_tables.POLICIES]
    assert len(set(looks)) == len(looks)
    for one, other in combinations(measured_tables.POLICIES, 2):
        if SERIES[one].light == SERIES[other].light:
            assert SERIES[one].shape != SERIES[other].shape


def test_an_unknown_policy_is_drawn_and_called_by_its_name(tmp_path: Path) -> None:
    numbers = {HOSTILE: measured_tables.POLICIES["snapkv"], "mine:x=1": measured_tables.POLICIES["h2o"]}
    folder = write_measured(tmp_path, measured_tables.measured(numbers), measured_tables.matched(numbers))
    page = render_page([folder])
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(2)" in page
    assert "mine:x=1" in page
    written = write_figures(folder, tmp_path / "figures")
    assert "measured-tradeoff.svg" in written
    assert look("mine:x=1") == look("mine:x=1")
    assert look("mine:x=1").label == "mine:x=1"


# Other tables


def test_less_than_everything_still_has_its_section(tmp_path: Path) -> None:
    one_kind = measured_tables.measured().filter(
        (pl.col("block_tables") == "per_head") & (pl.col("block_size") == 16) & (pl.col("ratio") == 0.5)
    )
    section = section_of(write_measured(tmp_path, one_kind, measured_tables.EMPTY))
    assert [found.id for found in section.figures] == [
        "measured-tradeoff",
        "measured-copies",
        "measured-saving",
    ]
    assert section.figures[0].controls[0].values == ("per_head",)
    assert section.key_numbers == ()
    notes = next(found for found in section.items if isinstance(found, Notes))
    assert len(notes.texts) == 1
    render_page([tmp_path])
    write_figures(tmp_path, tmp_path / "figures")


def test_quality_that_is_undefined_or_nought_leaves_the_rest(tmp_path: Path) -> None:
    frame = measured_tables.measured().with_columns(kl=pl.lit(0.0), delta_nll=pl.lit(None, pl.Float64))
    section = section_of(write_measured(tmp_path, frame))
    assert section.figures[0].id == "measured-matched"
    ledger = item(section, "measured-ledger")
    assert set(column(ledger, "ΔNLL (nats)").values()) == {""}
    render_page([tmp_path])


def test_one_prompt_has_no_spread_but_a_count(tmp_path: Path) -> None:
    frame = measured_tables.measured().filter(pl.col("prompt") == "topics-0")
    section = section_of(write_measured(tmp_path, frame))
    assert (
        "means over 1 prompt." in next(found for found in section.items if isinstance(found, Notes)).texts[0]
    )
    assert column(item(section, "measured-ledger"), "KL (nats)")["SnapKV"].endswith("± 0.000")


def test_a_policy_measured_at_some_ratios_only(tmp_path: Path) -> None:
    frame = measured_tables.measured().filter((pl.col("policy") != "tova") | (pl.col("ratio") == 0.9))
    section = section_of(write_measured(tmp_path, frame))
    assert "TOVA" in [row[0] for row in item(section, "measured-ledger").rows]
    notes = next(found for found in section.items if isinstance(found, Notes))
    assert "of 11 policies" in notes.texts[0]
    assert "TOVA" not in notes.texts[0]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda frame: frame.clear(), "has no rows"),
        (lambda frame: frame.with_columns(pl.col("block_tables") + "s"), "has no rows"),
        (lambda frame: frame.with_columns(model="prompt"), "is of 5 models"),
        (lambda frame: frame.drop("top1"), "no column 'top1'"),
    ],
)
def test_tables_that_are_none_are_refused(tmp_path: Path, spoil: Any, said: str) -> None:
    write_measured(tmp_path, spoil(measured_tables.measured()))
    with pytest.raises(InputError, match=said) as refused:
        render_page([tmp_path])
    assert "\n" not in str(refused.value)


def test_block_maps_of_uneven_views_are_refused(tmp_path: Path) -> None:
    write_measured(tmp_path)
    file = tmp_path / "interactive_data.json"
    data = json.loads(file.read_text())
    del data["block_maps"][4]
    file.write_text(json.dumps(data))
    with pytest.raises(InputError, match="views differ"):
        render_page([tmp_path])


def test_equal_folders_give_equal_pages(folder: Path) -> None:
    assert render_page([folder]) == render_page([folder])
