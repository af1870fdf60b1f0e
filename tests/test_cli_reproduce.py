"""``kvreclaim reproduce``: its table at 80 columns, the tally, its JSON."""

import json
import re

import pytest
from command_line import call, run
from study_run import study

from kvreclaim.study import reproduce as whole_study


@pytest.fixture
def answer(monkeypatch, tmp_path):
    """The command's answer on the study as published; its figures and page are not drawn."""
    monkeypatch.setattr(whole_study, "reproduce", lambda *_: study())
    monkeypatch.setattr("kvreclaim.cli.reproduce._draw", lambda *_: None)
    return call("reproduce", "--out", tmp_path / "out", "--json", tmp_path / "figures.json")


def rows(out):
    """Yield id, published, reproduced and status of each row, the experiment back in front of the id."""
    experiment = ""
    for line in out.rpartition("─")[2].split("\n\n")[0].splitlines():
        found = re.fullmatch(r"  (\S+) +(\S.*?)  +(\S.*?)  (exact|within|compatible|not reproduced) *", line)
        if found:
            yield (f"{experiment}-{found[1]}", *found.groups()[1:])
        elif re.match(r"\S", line):
            experiment = line.strip()


def test_ids_stay_whole_and_values_have_their_unit_at_80_columns(answer):
    assert answer.status == 0
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "…" not in answer.out
    shown = {name: (reproduced, status) for name, _, reproduced, status in rows(answer.out)}
    assert list(shown) == [figure.id for figure in study().published]
    for figure in study().published:
        reproduced, status = shown[figure.id]
        assert (status, reproduced.endswith(" %")) == (figure.status, figure.published.endswith("%"))
        value = float(re.sub(r" ±.*| %|,", "", reproduced))
        assert value == pytest.approx(figure.reproduced, rel=1e-3)


def test_the_tally_tells_figures_from_words(answer):
    text = " ".join(answer.out.split())
    assert "14 exact, 43 within (23 figures" in text
    assert "20 claims in words" in text
    assert "1 compatible, 0 not reproduced" in text


def test_json_has_the_rows_of_published_csv(answer, tmp_path):
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [figure["id"] for figure in figures] == [figure.id for figure in study().published]
    keys = ["id", "quantity", "published", "reproduced", "std", "n", "oracle", "tolerance", "status"]
    assert list(figures[0]) == keys


def test_one_run_writes_tables_figures_and_page(tmp_path):
    answer = run("reproduce", "--seeds", "1", "--jobs", "2", "--out", tmp_path / "out")
    assert (answer.status, answer.err) == (0, "")
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names >= {"published.csv", "results_summary.csv", "run.json", "figures", "index.html"}
