"""``kvreclaim reproduce`` to its end: what it writes, says, and answers with."""

import csv
import json

import pytest
from command_line import call

SEEDS = 3


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduced") / "report"
    return folder, call("reproduce", "--seeds", str(SEEDS), "--out", folder, "--json", "-")


def test_it_succeeds_and_prints_pure_json(reproduced):
    folder, done = reproduced
    assert done.status == 0
    published = json.loads(done.out)
    with (folder / "published.csv").open() as table:
        assert [row["id"] for row in csv.DictReader(table)] == [row["id"] for row in published]
    assert len(published) >= 58


def test_it_writes_the_whole_folder(reproduced):
    folder, _done = reproduced
    names = {path.name for path in folder.iterdir()}
    tables = {"results_summary.csv", "published.csv", "interactive_data.json", "run.json"}
    assert names == {*tables, "figures", "index.html"}
    drawn = {path.suffix for path in (folder / "figures").iterdir()}
    assert drawn == {".svg", ".png"}
    assert len(list((folder / "figures").glob("*.svg"))) >= 15
    assert (folder / "index.html").read_text().rstrip().endswith("</html>")
    run = json.loads((folder / "run.json").read_text())
    assert (run["command"], run["parameters"]["seeds"]) == ("reproduce", SEEDS)


def test_a_figure_that_is_not_reproduced_fails_only_at_the_studys_own_count(monkeypatch, tmp_path):
    """With 2 runs some figure is off; that fails only where 2 are the number of the study."""
    import kvreclaim.cli.reproduce as command

    monkeypatch.setattr(command, "PUBLISHED_SEEDS", 2)
    failed = call("reproduce", "--seeds", "2", "--out", tmp_path / "report")
    assert failed.status == 1
    assert "not reproduced" in failed.out
