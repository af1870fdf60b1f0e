"""The documents' commands run, their Python holds, and every reported case has its answer."""

import re
from pathlib import Path

import pytest
from command_line import call

ROOT = Path(__file__).parents[1]
TEXT = "".join((ROOT / "docs" / name).read_text() for name in ("why-memory-did-not-go-down.md", "serving.md"))
COMMANDS = sorted(
    {
        line
        for block in re.findall(r"^```\n(.*?)^```$", TEXT, re.M | re.S)
        for line in block.splitlines()
        if line.startswith("kvreclaim ") and "DIR" not in line and "PREFIX" not in line
    }
)
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
CASES = range(1, 18)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    words = [word if word != "out" else str(tmp_path / "out") for word in command.split()[1:]]
    answer = call(*words)
    assert answer.status == 0, answer.err


@pytest.mark.parametrize("code", SNIPPETS, ids=range(len(SNIPPETS)))
def test_python_holds(code):
    exec(code, {})  # noqa: S102  # our own


def test_every_case_has_an_answer_with_something_to_run():
    answers = re.split(r"^## (\d+)\. ", TEXT, flags=re.M)
    found = dict(zip(map(int, answers[1::2]), answers[2::2], strict=True))
    assert sorted(found) == list(CASES)
    assert all("```" in found[case] for case in CASES)


def numbers(*words):
    answer = call(*words, "--json", "-")
    assert answer.status == 0, answer.err
    import json

    return json.loads(answer.out)


def test_what_the_answers_say_is_what_the_commands_show(monkeypatch):
    monkeypatch.chdir(ROOT)
    trace = "examples/traces/azure-conv-1000.csv"
    one = ("simulate", trace, "--requests", 1, "--blocks", 1200)
    full, packed = numbers(*one), numbers(*one, "--policy", "per-head", "--ratio", 0.9)
    assert packed["blocks_freed"] > 0
    assert packed["peak_blocks"] <= full["peak_blocks"]
    assert packed["peak_blocks"] == -(-374 // 16)  # the prompt's, before anything is evicted
    random = {row["id"]: row["value"] for row in numbers("bound", "--ratio", 0.875, "--block-size", 16)}
    assert random["independent"] == pytest.approx(0.118, abs=5e-4)
    qwen = ("--model", "qwen3-32b", "--gpu", "rtx-4090", "--weights-gib", 15.3)
    for share in (0.9, 0.95):
        blocks = numbers("simulate", trace, *qwen, "--utilization", share, "--requests", 1)["blocks"]
        assert 20_000 < 16 * blocks < 26_000
