"""Needle trials in a measurement: what is saved and counted, added to what is there, gone on with."""

import json
import shutil
from math import sqrt

import pytest
from small_models import smollm2
from tiny_measure import contents, differing, rows_of, settings

from kvreclaim import InputError
from kvreclaim.capture.measure.prompts import topics_text
from kvreclaim.capture.measure.run import measure
from kvreclaim.capture.measure.settings import Needles, Settings
from kvreclaim.capture.quality.haystack import Haystack
from kvreclaim.capture.quality.needle import SINGLE

COLUMNS = "task,question_seen,policy,ratio,trials,full_solved,solved,share,low,high,retained,needle_retained"
NEEDLES = Needles(2, ("single", "multi-key"), context=200, ratio=0.6)


@pytest.fixture
def copied(folder, tmp_path):
    """A folder whose sweep is done."""
    return shutil.copytree(folder, tmp_path / "copied")


@pytest.fixture(scope="module")
def with_needles(tiny, folder, tmp_path_factory):
    """The same with needles."""
    out = shutil.copytree(folder, tmp_path_factory.mktemp("needles") / "out")
    steps = []
    found = measure(settings(tiny, needles=NEEDLES), out, progress=lambda *step: steps.append(step))
    return out, found, steps


def trials_of(folder):
    return {file: file.stat().st_mtime_ns for file in folder.rglob("needles/**/*.json")}


def measured_again(asked, folder):
    """Measure, and return how many masks were judged."""
    steps = []
    measure(asked, folder, progress=lambda *step: steps.append(step))
    return steps[-1][1]


def test_needles_are_added_to_a_measurement_that_is_done(folder, with_needles):
    out, _, steps = with_needles
    policies = 5
    assert steps[-1] == (2 * 2 * 2 * policies, 2 * 2 * 2 * policies)
    new = {name for name in differing(out, folder) if not name.startswith("needles/")}
    assert new == {"needles.csv", "run.json"}
    assert len(trials_of(out)) == 2 * 2 * 2
    parameters = json.loads((out / "run.json").read_text())["parameters"]
    assert parameters["needles"] == {
        "trials": 2,
        "tasks": ["single", "multi-key"],
        "context": 200,
        "ratio": 0.6,
    }


def test_where_the_full_cache_fails_nothing_is_said_of_policies(tiny, with_needles):
    """A random model answers no question."""
    out, found, _ = with_needles
    assert (out / "needles.csv").read_text().splitlines()[0] == COLUMNS
    rows = rows_of(out / "needles.csv")
    keys = [(row["task"], row["question_seen"], row["policy"]) for row in rows]
    assert keys == [
        (task, seen, policy)
        for task in ("single", "multi-key")
        for seen in ("True", "False")
        for policy in settings(tiny).policies
    ]
    for row in rows:
        assert (row["ratio"], row["trials"], row["full_solved"], row["solved"]) == ("0.6", "2", "0", "0")
        assert not any(row[name] for name in ("share", "low", "high", "retained", "needle_retained"))
    assert len(found.to_dict()["needles"]) == len(rows)
    assert found.needles[0].share is None


def test_without_needles_the_table_is_empty(folder):
    assert (folder / "needles.csv").read_text() == COLUMNS + "\n"


def test_trials_are_added_to_those_that_are_there_and_left_out_without_loss(tiny, with_needles, tmp_path):
    out = shutil.copytree(with_needles[0], tmp_path / "out")
    before = trials_of(out)
    assert measured_again(settings(tiny, needles=NEEDLES), out) == 0
    more = Needles(3, NEEDLES.tasks, NEEDLES.context, NEEDLES.ratio)
    assert measured_again(settings(tiny, needles=more), out) == 1 * 2 * 2 * 5
    assert {row["trials"] for row in rows_of(out / "needles.csv")} == {"3"}
    assert before.items() < trials_of(out).items()
    assert measured_again(settings(tiny), out) == 0
    assert rows_of(out / "needles.csv") == []
    assert json.loads((out / "run.json").read_text())["parameters"]["needles"] is None
    assert measured_again(settings(tiny, needles=NEEDLES), out) == 0
    assert contents(out)["needles.csv"] == contents(with_needles[0])["needles.csv"]


def test_processes_make_no_difference(tiny, copied, with_needles):
    steps = []
    asked = settings(tiny, needles=NEEDLES)
    measure(asked, copied, jobs=2, progress=lambda *step: steps.append(step))
    assert steps == [(done, 40) for done in range(41)]
    assert differing(copied, with_needles[0]) == set()


def test_a_run_that_ends_keeps_the_trials_that_are_done(tiny, copied, with_needles):
    def end(done, _):
        if done == 15:  # within the third trial's
            raise KeyboardInterrupt

    asked = settings(tiny, needles=NEEDLES)
    with pytest.raises(KeyboardInterrupt):
        measure(asked, copied, progress=end)
    kept = trials_of(copied)
    assert len(kept) == 3
    assert measured_again(asked, copied) == 5 * 5
    assert differing(copied, with_needles[0]) == set()
    assert kept.items() < trials_of(copied).items()


def test_a_trial_that_is_damaged_or_of_another_text_is_attempted_again(tiny, with_needles, tmp_path):
    out = shutil.copytree(with_needles[0], tmp_path / "out")
    files = sorted(trials_of(out))
    files[0].write_text("{")
    record = json.loads(files[1].read_text())
    files[1].write_text(json.dumps({**record, "trial_sha256": "0" * 64}))
    files[2].write_text(json.dumps({**record, "attempts": [{"task": "single"}]}))
    files[3].unlink()
    assert measured_again(settings(tiny, needles=NEEDLES), out) == 4 * 5
    assert differing(out, with_needles[0]) == set()


def test_what_cannot_be_asked(tiny, tmp_path):
    for needles, words in (
        ({"tasks": ("double",)}, "no needle task 'double': pass one of single, multi-key, multi-value"),
        ({"context": 240}, "takes 256: pass a shorter prompt"),
        ({"context": 10}, "too short for its needles"),
        ({"ratio": 1.0}, "ratio 1.0 keeps nothing of 200 tokens"),
    ):
        asked = Needles(**{"trials": 1, "context": 200, **needles})
        with pytest.raises(InputError, match=words):
            measure(settings(tiny, needles=asked), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_smollm2_finds_what_a_window_keeps(tmp_path):
    """What StreamingLLM kept of a needle follows from where it stands; what it dropped is not found."""
    _, tokenizer = smollm2()
    tokens, trials = 384, 4
    asked = Settings(
        "smollm2-135m",
        policies=("streaming-llm",),
        ratios=(0.5,),
        context=32,
        prompts=1,
        next_tokens=2,
        block_sizes=(16,),
        needles=Needles(trials, context=tokens, ratio=0.5),
    )
    rows = {row.question_seen: row for row in measure(asked, tmp_path).needles}
    haystack = Haystack(tokenizer, topics_text()["pydoc_data.topics"])
    for seen, row in rows.items():
        kept, solved, full = [], 0, 0
        for number in range(trials):
            trial = haystack.trial(SINGLE, tokens, seen, number)
            said = "seen" if seen else "unseen"
            file = tmp_path / "needles" / f"single-{said}" / f"{tokens}-ratio-0.5" / f"trial-{number}.json"
            first, *others = json.loads(file.read_text())["attempts"]
            assert (first["policy"], first["retained"]) == ("full", 1.0)
            assert len(others) == (first["recalled"] == 1)
            for one in others:
                ((start, end),) = trial.needles
                window = range(tokens - (tokens // 2 - 4), tokens)  # beside 4 sinks
                kept.append(sum(place in window for place in range(start, end)) / (end - start))
                assert one["needle_retained"] == pytest.approx(kept[-1])
                assert not one["recalled"] or kept[-1] > 0
                solved, full = solved + one["recalled"], full + 1
        assert (row.trials, row.full_solved, row.solved) == (trials, full, solved)
        assert full > 0
        assert row.needle_retained == pytest.approx(sum(kept) / full)
        z2, p = 1.959964**2, solved / full  # Wilson's interval, as the two roots of its quadratic equation
        half = sqrt(z2 * (4 * full * p * (1 - p) + z2))
        roots = [(2 * full * p + z2 + sign * half) / (2 * (full + z2)) for sign in (-1, 1)]
        assert (row.low, row.high) == pytest.approx(roots, abs=1e-6)
