"""``kvreclaim observe``: tables, JSON, folder and refusals, with a runtime that does as predicted."""

import csv
import io
import json
import os
import sys
from pathlib import Path

import observed_tables
import pytest
from command_line import call, names, refused

from kvreclaim.results import as_csv
from kvreclaim.runtimes import in_vllm, openvino
from kvreclaim.runtimes.observation import Scenario
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.texts import topics


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def asked(monkeypatch):
    """What a runtime that does as predicted was asked for."""
    seen = []

    def observe(scenario, chosen, report):
        seen.append((scenario, list(chosen)))
        sys.stdout.write("a library has something to say\n")
        os.write(1, b"below Python too\n")
        report(1 + len(chosen))
        wrong = any(options.policy == "snapkv" for options in chosen)
        return [
            observed_tables.observation(options, wrong=wrong and options.policy == "snapkv")
            for options in [Options("none"), *chosen]
        ]

    monkeypatch.setattr(in_vllm, "observe", observe)
    return seen


def table(name):
    return list(csv.DictReader(io.StringIO((Path("observed") / name).read_text())))


SMALL = ("--model", "here", "--pool-blocks", 10, "--requests", 3, "--prompt-tokens", 140, "--max-tokens", 8)


def test_table_json_and_folder_say_the_same(asked):
    answer = call("observe", *SMALL, "--policy", "streaming-llm", "--budget", 40, "--json", "-")
    assert answer.status == 0, answer.err
    assert asked == [
        (
            Scenario("here", pool_blocks=10, requests=3, prompt_tokens=140, max_tokens=8),
            [Options("streaming-llm", budget=40, mode="pack")],
        )
    ]
    full, packed = json.loads(answer.out)
    assert (full["policy"], full["mode"], full["budget"]) == ("none", None, None)
    assert full["observed"] == full["predicted"]
    assert packed["observed"] == {
        "peak_running": 3,
        "steps": 9,
        "blocks_freed": 9,
        "preemptions": 0,
        "free_blocks_end": 10,
    }
    assert (packed["runtime"], packed["model"], packed["moved_bytes"]) == ("vllm", "here", 3 << 20)
    assert (packed["unequal"], packed["pool_blocks"], packed["requests"]) == ([], 10, 3)
    words = " ".join(answer.err.split())
    assert "streaming-llm 40 pack 3 (3) 9 (9) 9 (9) 0 (0) 3.0 yes" in words
    assert names("observed") == ["evictions.csv", "run.json", "runs.csv", "steps.csv"]
    rows = table("runs.csv")
    assert [(row["observed_steps"], row["unequal"]) for row in rows] == [("16", "nothing"), ("9", "nothing")]
    steps = table("steps.csv")
    assert [sum(row["run"] == run for row in steps) for run in "01"] == [16, 9]
    run = json.loads(Path("observed/run.json").read_text())
    assert (run["command"], run["kinds"]) == ("observe", ["observed", "simulated"])
    assert run["parameters"]["runtime"] == "vllm"


def test_every_policy_is_run_in_every_mode(asked):
    answer = call(
        *("observe", *SMALL, "--policy", "streaming-llm", "--policy", "h2o", "--budget", 40),
        *("--mode", "pack", "--mode", "mask", "--buffer", 32),
    )
    assert answer.status == 0, answer.err
    ((_, chosen),) = asked
    assert [(options.policy, options.mode, options.buffer) for options in chosen] == [
        (policy, mode, 32) for policy in ("streaming-llm", "h2o") for mode in ("pack", "mask")
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "adakv", "--policy", "adakv:snapkv"), "adakv:snapkv is given twice"),
        (("--policy", "triattention"), "pass --centres"),
        (("--policy", "snapkv", "--mode", "packed"), "pass one of free, pack, mask"),
    ],
)
def test_what_would_run_twice_or_lacks_something_is_refused(asked, arguments, said):
    refused(call("observe", *SMALL, *arguments), said)
    assert asked == []


def test_a_policy_takes_scores_and_parameters_as_in_measure(asked, tmp_path):
    centres = tmp_path / "centres.npz"
    centres.write_bytes(b"of a model")
    answer = call(
        *(
            "observe",
            *SMALL,
            "--policy",
            "block-joint:recent=8:tova",
            "--policy",
            "block-joint:recent=8:knorm",
        ),
        *("--policy", "triattention:recent=16", "--centres", centres, "--budget", 96, "--json", "-"),
    )
    assert answer.status == 0, answer.err
    ((_, chosen),) = asked
    assert chosen == [
        Options("block-joint", budget=96, recent=8, scores="tova"),
        Options("block-joint", budget=96, recent=8, scores="knorm"),
        Options("triattention", budget=96, window=16, centres=str(centres)),
    ]
    named = ["none", "block-joint:recent=8:tova", "block-joint:recent=8:knorm", "triattention:recent=16"]
    assert [run["policy"] for run in json.loads(answer.out)] == named
    assert [row["policy"] for row in table("runs.csv")] == named
    words = " ".join(answer.err.split())
    assert "block-joint:recent=8:tova" in words.replace("- ", "-").replace(": ", ":")


def test_a_wrong_prediction_is_said(asked):
    answer = call("observe", *SMALL, "--policy", "snapkv", "--budget", 70)
    assert answer.status == 0, answer.err
    assert "no: free blocks end" in " ".join(answer.out.split())


def test_budgets_of_matched_quality_are_run_and_written(asked, tmp_path):
    """Of a policy that may evict nothing there is no run; its row says so."""
    rows = [("snapkv", 0.5, 0), ("effective:block_size=32:streaming-llm", 0.5, 1), ("knorm", 0.0, 3)]
    known = {"target_kl": 0.02, "block_tables": "shared", "remedy": "zero_copy", "reached": 3, "above": 0}
    table_of = [{**known, "policy": policy, "ratio": ratio, "below": below} for policy, ratio, below in rows]
    folder = tmp_path / "measured"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"command": "measure", "parameters": {"context": 140}}))
    (folder / "matched.csv").write_text(as_csv(tuple(table_of[0]), table_of))
    answer = call("observe", *SMALL, "--matched", folder, "--json", "-")
    assert answer.status == 0, answer.err
    ((_, chosen),) = asked
    assert chosen == [Options("snapkv", budget=70), Options("streaming-llm", budget=70, mode="free")]
    assert "may evict nothing at this quality: knorm pack" in answer.err
    assert [run["ratio"] for run in json.loads(answer.out)] == [None, 0.5, 0.5]
    assert [(row["policy"], row["mode"], row["budget"], row["outside"]) for row in table("budgets.csv")] == [
        ("snapkv", "pack", "70", "0"),
        ("streaming-llm", "free", "70", "1"),
        ("knorm", "pack", "140", "3"),
    ]
    assert json.loads(Path("observed/run.json").read_text())["parameters"]["at_matched_quality"] is True
    for option in (("--mode", "pack"), ("--policy", "snapkv"), ("--budget", 128), ("--buffer", 32)):
        refused(
            call("observe", *SMALL, "--matched", folder, *option),
            "leave out --policy, --mode, --budget and --buffer",
        )


def test_openvino_is_asked_in_its_own_words(monkeypatch):
    asked = []

    def observe(scenario, chosen, report):
        asked.extend(chosen)
        report(2)
        kept = [Options("none"), Options("streaming-llm", budget=40)]
        return [observed_tables.observation(options, runtime="openvino") for options in kept]

    monkeypatch.setattr(openvino, "observe", observe)
    answer = call("observe", *SMALL, "--runtime", "openvino", "--budget", 96, "--json", "-")
    assert answer.status == 0, answer.err
    assert asked == [openvino.Eviction("norm-sum", 96)]
    for run in json.loads(answer.out):
        assert run["runtime"] == "openvino"
        assert (run["predicted"], run["unequal"], run["observed"]["blocks_freed"]) == (None, None, None)
    assert "nothing is predicted" in " ".join(answer.err.split())
    assert json.loads(Path("observed/run.json").read_text())["kinds"] == ["observed"]
    assert table("runs.csv")[1]["unequal"] == table("runs.csv")[1]["predicted_steps"] == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--policy", "wish"), ("policy 'wish'", "sum, norm-sum")),
        (("--budget", 100), ("budget is 100", "whole blocks of 32")),
        (("--budget", 64), ("budget is 64", "more than 64 slots")),
        (("--mode", "pack"), ("leave out --mode",)),
        (("--buffer", 32), ("leave out --mode and --buffer",)),
        (("--block-size", 16), ("OpenVINO",)),
        (("--centres", __file__), ("leave out --centres",)),
    ],
)
def test_what_openvino_does_not_do_is_refused(options, words):
    refused(call("observe", *SMALL, "--runtime", "openvino", *options), *words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--runtime", "abacus"), ("runtime 'abacus' is not known", "vllm, openvino")),
        (("--policy", "wish"), ("policy", "'wish'", "snapkv")),
        (("--mode", "wish"), ("mode", "'wish'", "free, pack, mask")),
        (("--policy", "snapkv", "--budget", 10), ("budget 10", "window of 64")),
        (("--policy", "block-joint:wish"), ("block-joint takes one scorer", "last-queries")),
        (("--policy", "snapkv:sinks=8"), ("no parameter sinks", "window_size")),
        (("--policy", "block-joint:triattention:recent=8"), ("centres", "kvreclaim calibrate queries")),
        (("--policy", "triattention:recent=8", "--centres", "nowhere"), ("centres nowhere", "no such file")),
        (("--policy", "snapkv", "--centres", __file__), ("--centres", "pass --policy triattention")),
        (("--requests", 0), ("requests is 0",)),
        (("--prompt-tokens", 400), ("408 tokens needs 13 blocks", "the pool has 10")),
        (("--out", ""), ("no name", "--out")),
        (("--policy", "wi\nsh"), ("policy 'wi\\nsh' is not the plugin's",)),
        (("--policy", "snapkv:si\nnks=8"), ("snapkv:si\\nnks=8: snapkv has no parameter si\\nnks",)),
        (("--policy", "snapkv:to\nva"), ("snapkv:to\\nva: snapkv takes no other's",)),
        (("--mode", "wi\nsh"), ("mode is 'wi\\nsh'",)),
        (("--runtime", "wi\nsh"), ("runtime 'wi\\nsh'",)),
        (("--matched", "wi\nsh"), ("wi\\nsh holds no matched quality",)),
        (
            ("--policy", "triattention:recent=8", "--centres", "wi\nsh"),
            ("centres is 'wi\\nsh': pass a path",),
        ),
    ],
)
def test_bad_input_is_refused_before_anything_starts(asked, options, words):
    refused(call("observe", *SMALL, *options), *words)
    assert asked == []


def test_prompts_are_those_that_measure_cuts():
    scenario = Scenario("here", requests=3, prompt_tokens=5, max_tokens=7)
    letters = [ord(letter) for letter in topics()]
    prompts = scenario.prompts(lambda text: [ord(one) for one in text], start=(1,))
    step = 4 + 7  # the first of a prompt's five tokens is the start
    firsts = [number * (len(letters) // step) // 3 * step for number in range(3)]
    assert [prompt.first_token for prompt in prompts] == firsts
    for prompt, first in zip(prompts, firsts, strict=True):
        assert [*prompt.ids, *prompt.next_ids] == [1, *letters[first : first + step]]


def test_what_a_runtime_prints_is_not_part_of_the_answer(asked, capfd):
    answer = call("observe", *SMALL, "--policy", "streaming-llm", "--budget", 40, "--json", "-")
    assert len(json.loads(answer.out)) == 2
    assert "a library has something to say" in answer.err
    written = capfd.readouterr()
    assert (written.out, written.err) == ("", "below Python too\n")
