"""The section of an advice: its words and figures against the tables it is made of."""

import math

import advice_tables
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreclaim import InputError
from kvreclaim.report.charts import advice as charts
from kvreclaim.report.charts import names
from kvreclaim.report.folder import Folder
from kvreclaim.report.registry import sections
from kvreclaim.report.section import BlockMaps, Notes, Section, Table
from kvreclaim.report.theme import LIGHT


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory) -> Section:
    folder = advice_tables.write_advice(tmp_path_factory.mktemp("advice"))
    (found,) = sections([Folder(folder)])
    return found


def test_the_frontier_joins_what_no_other_beats_in_loss_and_copies(section: Section) -> None:
    (figure,) = section.figures
    data = figure.default(600, LIGHT).data
    curve = data.filter(data["role"] == "curve")
    assert curve["x"].to_list() == pytest.approx([0.0, 1.35])
    dots = data.filter(data["role"] == "dot")
    expected = {
        name: (45 * advice_tables.NEEDED.get(name, moved), math.exp(ratio - 4.2))
        for name, _, moved, ratio in advice_tables.CANDIDATES
        if name not in ("fp8", "int8")
    }
    found = sorted(dots.select("x", "mean").rows())
    assert found == [pytest.approx(one) for one in sorted(expected.values())]
    ringed = dots.filter(dots["ring"])["series"].to_list()
    assert ringed == ["block-joint:expected-attention", "block-swap:last-queries"]
    assert "" not in dots["side"].to_list()
    assert "here 1.35 MiB" in figure.caption


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=8))
def test_the_frontier_by_brute_force(merits: list[tuple[int, int, int]]) -> None:
    table = pl.DataFrame(merits, schema=["mean", "x", "returned"], orient="row")
    expected = [
        not any(
            a <= loss and b <= moved and c >= back and (a, b, c) != (loss, moved, back) for a, b, c in merits
        )
        for loss, moved, back in merits
    ]
    assert charts.with_frontier(table)["frontier"].to_list() == expected


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=12))
def test_names_cover_neither_points_nor_each_other(places: list[tuple[float, float]]) -> None:
    texts = ["a name of a policy"] * len(places)
    found = names.sides(places, texts, 400)
    boxes = [(270 * x - 7, 400 * y - 7, 270 * x + 7, 400 * y + 7) for x, y in places]
    for (x, y), side in zip(places, found, strict=True):
        if side:
            dx, dy, align = names.SIDES[side]
            left = 270 * x + dx - {"left": 0, "center": 0.5, "right": 1}[align] * 6.2 * 18
            box = (left, 400 * y + dy - 6.5, left + 6.2 * 18, 400 * y + dy + 6.5)
            assert all(box[0] >= b[2] or b[0] >= box[2] or box[1] >= b[3] or b[1] >= box[3] for b in boxes)
            boxes.append(box)


def test_copies_over_the_budget_are_said_to_be(section: Section) -> None:
    (table,) = [item for item in section.items if isinstance(item, Table)]
    copied = {row[0]: row[6] for row in table.rows}
    assert copied["SnapKV"] == "none: it takes 11 %, over the 3 % allowed"
    assert copied["Block-joint (ExpectedAttention)"] == "0 %"


def test_the_recommendation_and_its_uncertainty(section: Section) -> None:
    (note,) = [item for item in section.items if isinstance(item, Notes)]
    assert "loses least" in note.texts[0]
    assert "block-joint:last-queries +0.400 [+0.100, +0.700]" in note.texts[0]
    assert "fp8" not in note.texts[0]
    assert section.key_numbers[0].value == "50.0 %"
    assert "Block-joint + swaps" in section.key_numbers[0].label


def test_every_candidate_has_a_row(section: Section) -> None:
    (table,) = [item for item in section.items if isinstance(item, Table)]
    assert [row[0] for row in table.rows] == [
        "INT8 cache",
        "FP8 cache",
        "Block-joint + swaps (recommended)",
        "SnapKV",
        "Block-joint (ExpectedAttention)",
        "Block-joint (last queries)",
        "StreamingLLM",
    ]
    assert all(row[4] == "–" for row in table.rows)
    assert any(isinstance(item, BlockMaps) for item in section.items)


def test_a_folder_without_its_choice_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = advice_tables.write_advice(tmp_path / "advice")
    (folder / "advice.json").unlink()
    with pytest.raises(InputError, match=r"advice\.json"):
        sections([Folder(folder)])
