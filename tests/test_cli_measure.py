"""``kvreclaim measure``: its tables and JSON, and bad input in one line before any work is done."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'kvreclaim[models]'")
pytest.importorskip("kvpress", reason="needs the extra: pip install 'kvreclaim[models]'")

import tiny_model
from command_line import ENVIRONMENT, call, refused, run, start
from rich.console import Console

SMALL = ("--context", 160, "--prompts", 1, "--next-tokens", 24)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny Llama as a directory, beside a text of its words."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "text").write_text(tiny_model.text(500))
    return tiny_model.save(tiny_model.llama(), folder / "llama")


@pytest.fixture
def measure(tiny, tmp_path):
    """The command on the tiny model and its text, into a new folder; later options win."""

    def command(*options, **other):
        given = ("--model", tiny, "--text", tiny.parent / "text", "--out", tmp_path / "out", *SMALL)
        return call("measure", *given, *options, **other)

    return command


def test_tables_and_folder(measure, tmp_path):
    answer = measure("--policy", "snapkv", "--policy", "streaming-llm", "--ratio", 0.3, "--ratio", 0.5)
    assert (answer.status, answer.err) == (0, "")
    at_ratio, matched = answer.out.split("At matched quality (SnapKV's KL at ratio 0.5)")
    assert "At ratio 0.5, blocks of 16" in at_ratio
    for part in at_ratio, matched:
        assert "streaming-llm" in part and "snapkv" in part
    assert max(map(len, answer.out.splitlines())) <= 80
    assert f"wrote {tmp_path / 'out'}" in answer.out.replace("\n", "")
    assert (tmp_path / "out" / "measured.csv").exists()


def test_json(measure):
    answer = measure(
        "--policy", "knorm", "--ratio", 0.5, "--block-size", 8, "--target-kl", 0.01, "--json", "-"
    )
    found = json.loads(answer.out)
    assert {row["block_size"] for row in found["measured"]} == {8}
    assert {row["policy"] for row in found["matched"]} == {"knorm"}
    assert found["matched_prompts"][0]["target_kl"] == 0.01
    assert "At matched quality (a KL of 0.01), blocks of 8" in answer.err


def test_without_a_target(measure):
    answer = measure("--policy", "knorm", "--ratio", 0.5)
    assert answer.status == 0
    assert "no matched quality: measure snapkv at ratio 0.5 as well" in answer.out


def test_needles(measure, tmp_path):
    needles = ("--needle-trials", 1, "--needle-context", 200, "--needle-ratio", 0.25)
    answer = measure(
        "--policy", "knorm", "--ratio", 0.5, *needles, "--needle-task", "multi-key", "--json", "-"
    )
    assert answer.status == 0
    rows = json.loads(answer.out)["needles"]
    assert [(row["task"], row["question_seen"]) for row in rows] == [
        ("multi-key", True),
        ("multi-key", False),
    ]
    assert {(row["policy"], row["ratio"], row["trials"], row["share"]) for row in rows} == {
        ("knorm", 0.25, 1, None)
    }
    words = " ".join(answer.err.split())
    assert "Needles, multi-key, at ratio 0.25" in words
    assert "The full cache solves 0 of 1 with the question seen and 0 of 1 with the question unseen" in words
    assert max(map(len, answer.err.splitlines())) <= 80


def test_a_second_run_says_the_same(measure):
    options = ("--policy", "knorm", "--ratio", 0.5)
    assert measure(*options) == measure(*options)


def test_text_options_may_be_repeated(measure, tiny, tmp_path):
    (tmp_path / "more").write_text(tiny_model.text(500, seed=1))
    answer = measure("--policy", "knorm", "--ratio", 0.5, "--text", tmp_path / "more", "--prompts", 4)
    assert answer.status == 0
    cut = json.loads((tmp_path / "out" / "run.json").read_text())["parameters"]["prompt_texts"]
    assert [place["source"] for place in cut] == 2 * [str(tiny.parent / "text")] + 2 * [
        str(tmp_path / "more")
    ]


@pytest.mark.parametrize(
    "options, words",
    [
        (("--context", 300), ("324 tokens", "takes 256", "pass a shorter prompt")),
        (("--context", 10**12), ("takes 256", "pass a shorter prompt")),
        (("--prompts", 9), ("long enough for 2 of 9 prompts", "pass more text")),
        (("--text", "nowhere.txt"), ("nowhere.txt: can't be read",)),
        (("--policy", "snapvk"), ("no press 'snapvk': pass one of",)),
        (("--policy", "qfilter"), ("qfilter: it wants filters from the Hugging Face Hub",)),
        (("--policy", "merging"), ("merging: it merges the values",)),
        (("--policy", "snapkv:window=3"), ("snapkv has no parameter window",)),
        (("--policy", "adakv:observed-attention"), ("it wraps a press that needs attention weights",)),
        (("--ratio", 1), ("ratio 1.0 keeps nothing of 160 tokens",)),
        (("--ratio", 0.999), ("ratio 0.999 keeps nothing of 160 tokens",)),
        (("--ratio", 0), ("a ratio is 0.0",)),
        (("--ratio", "half"), ("--ratio is 'half': pass a",)),
        (("--next-tokens", 1), ("next_tokens is 1",)),
        (("--block-size", 0), ("block_size is 0",)),
        (("--needle-trials", -1), ("--needle-trials is '-1': pass at least 0",)),
        (
            ("--needle-trials", 1, "--needle-task", "x"),
            ("no needle task 'x': pass one of single, multi-key",),
        ),
        (("--needle-trials", 1, "--needle-context", 250), ("takes 256", "pass a shorter prompt")),
        (("--needle-trials", 1, "--needle-context", 20), ("too short for its needles: pass a longer one",)),
        (("--needle-trials", 1, "--needle-ratio", 1), ("ratio 1.0 keeps nothing of 1024 tokens",)),
        (("--jobs", 0), ("jobs is 0",)),
        (("--model", "nowhere/at/all"), ("no model 'nowhere/at/all'",)),
        (("--json", "nowhere/file.json"), ("nowhere",)),
    ],
)
def test_bad_input_is_one_line(measure, tmp_path, options, words):
    refused(measure(*options), *words)
    assert not (tmp_path / "out").exists()


def test_a_press_that_cannot_take_the_prompt(measure):
    refused(
        measure("--policy", "snapkv:window_size=200", "--ratio", 0.5), "snapkv:window_size=200 at ratio 0.5"
    )


def test_a_text_that_is_none(measure, tmp_path):
    (tmp_path / "image").write_bytes(b"\xff\xd8\xff\xe0")
    refused(measure("--text", tmp_path / "image"), "image: is not UTF-8; pass a text file")


def test_a_broken_model_directory(tiny, tmp_path):
    (tmp_path / "model").mkdir()
    refused(call("measure", "--model", tmp_path / "model"), "has no config.json")
    for file in tiny.iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes()[:100])
    refused(call("measure", "--model", tmp_path / "model"), "can't be loaded")


def test_a_folder_of_other_results(measure, tmp_path):
    options = ("--policy", "knorm", "--ratio", 0.5)
    measure(*options)
    refused(measure(*options, "--ratio", 0.6), "was begun with other ratios; pass another --out")
    (tmp_path / "out" / "run.json").write_text('{"command": "reproduce"}')
    refused(measure(*options), "holds the results of 'reproduce'; pass another --out")
    (tmp_path / "out" / "run.json").write_text('{"command": "measure"}')
    refused(measure(*options), "its run.json can't be read; pass another --out")
    (tmp_path / "file").write_text("")
    refused(measure("--out", tmp_path / "file"), "can't be made a folder")


def test_ctrl_c_is_one_line_and_keeps_the_cells(tiny, tmp_path):
    options = ("--model", tiny, "--text", tiny.parent / "text", "--out", tmp_path / "out", *SMALL)
    policies = ("--policy", "snapkv", "--policy", "h2o-accumulated:stride=1")  # the latter takes its time
    process = start("measure", *options, *policies, "--jobs", 2, process_group=0)
    last = time.monotonic() + 60
    while not list(tmp_path.rglob("cells/**/*.json")) and time.monotonic() < last:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert err.decode().splitlines() == ["kvreclaim: interrupted; files written so far are whole"]
    assert not (tmp_path / "out" / "measured.csv").exists()


def test_without_the_extra(tmp_path):
    code = "import sys; sys.modules['torch'] = None; from kvreclaim.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "measure", "--model", "smollm2-135m", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kvreclaim: needs the package torch; install it: pip install 'kvreclaim[models]'\n"
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_fetched(tmp_path):
    answer = run(
        "measure",
        "--model",
        "smollm2-135m",
        env={**ENVIRONMENT, "KVRECLAIM_MODELS": str(tmp_path)},
        cwd=tmp_path,
    )
    refused(answer, "smollm2-135m is not here yet: run kvreclaim models fetch smollm2-135m")


def test_shares_of_needles_are_printed_with_their_intervals():
    from kvreclaim.capture.measure.needles import NeedleRow
    from kvreclaim.cli.measured_needles import needle_tables

    def row(policy, seen, solved, *numbers):
        return NeedleRow("single", seen, policy, 0.5, 70, 66, solved, *numbers)

    rows = [
        row("knorm", True, 2, 0.0303, 0.0083, 0.1039, 0.5, 0.51),
        row("snapkv", True, 66, 1.0, 0.945, 1.0, 0.5, 0.98),
        NeedleRow("single", False, "knorm", 0.5, 70, 0, 0, *[None] * 5),
        NeedleRow("single", False, "snapkv", 0.5, 70, 0, 0, *[None] * 5),
    ]
    (table,) = needle_tables(rows)
    screen = Console(width=80)
    with screen.capture() as printed:
        screen.print(table)
    lines = [line.split() for line in printed.get().splitlines()]
    assert ["snapkv", "100.0%", "[94–100]", "98.0%", "–", "–"] in lines
    assert ["knorm", "3.0%", "[1–10]", "51.0%", "–", "–"] in lines
    assert lines.index(["snapkv", "100.0%", "[94–100]", "98.0%", "–", "–"]) < lines.index(
        ["knorm", "3.0%", "[1–10]", "51.0%", "–", "–"]
    )
