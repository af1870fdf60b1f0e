"""The section of an advice: its words and figures against the tables it is made of."""

import advice_tables
import pytest

from kvreclaim import InputError
from kvreclaim.report.folder import Folder
from kvreclaim.report.registry import sections
from kvreclaim.report.section import BlockMaps, Notes, Section, Table
from kvreclaim.report.theme import LIGHT


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory) -> Section:
    folder = advice_tables.write_advice(tmp_path_factory.mktemp("advice"))
    (found,) = sections([Folder(folder)])
    return found


def test_the_frontier_joins_what_no_other_beats(section: Section) -> None:
    (figure,) = section.figures
    data = figure.default(600, LIGHT).data
    curve = data.filter(data["role"] == "curve")
    assert curve["x"].to_list() == [0.0, 0.5, 0.5]
    dots = data.filter(data["role"] == "dot")
    expected = {name: (reclaim, ratio - 4.2) for name, reclaim, _, ratio in advice_tables.CANDIDATES}
    assert len(dots) == len(expected)
    for x, mean in dots.select("x", "mean").rows():
        assert any((x, mean) == pytest.approx(one) for one in expected.values())
    assert "3.0000 %" in dots["copied"].to_list() or "3 %" in " ".join(dots["copied"])


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
