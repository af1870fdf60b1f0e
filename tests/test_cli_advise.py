"""``kvreclaim advise``: its table, JSON and folder on a tiny model, and bad input in one line."""

import json

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'kvreclaim[models]'")
pytest.importorskip("kvpress", reason="needs the extra: pip install 'kvreclaim[models]'")

import tiny_model
from command_line import call, refused

SMALL = ("--context", 192, "--prompts", 2, "--next-tokens", 16, "--copy-budget", 0.05)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny Llama as a directory, beside a text of its words."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "text").write_text(tiny_model.text(1000))
    return tiny_model.save(tiny_model.llama(), folder / "llama")


@pytest.fixture
def advise(tiny, tmp_path):
    def command(*options):
        given = ("--model", tiny, "--text", tiny.parent / "text", "--out", tmp_path / "out", *SMALL)
        return call("advise", *given, *options)

    return command


def test_table_json_and_folder(advise, tmp_path):
    answer = advise("--json", tmp_path / "advice.json")
    assert (answer.status, answer.err) == (0, "")
    assert "At ratio 0.5, blocks of 16, shared tables" in answer.out
    assert "Loss: log KL over the next tokens." in " ".join(answer.out.split())
    assert max(map(len, answer.out.splitlines())) <= 80
    found = json.loads((tmp_path / "advice.json").read_text())
    assert found == json.loads((tmp_path / "out" / "advice.json").read_text())
    (recommended,) = [row for row in found["rows"] if row["recommended"]]
    assert recommended["candidate"] == found["choice"]["recommended"]
    assert found["choice"]["reason"].split(";")[0] in " ".join(answer.out.split())


def test_a_runtime_and_a_number_of_blocks(advise, tmp_path):
    answer = advise("--runtime", "vllm", "--block-size", 8, "--blocks", 6, "--json", "-")
    found = json.loads(answer.out)
    assert "At ratio 0.25, blocks of 8" in answer.err
    assert {row["ratio"] for row in found["rows"]} == {0.25, 0.0}
    joint = next(row for row in found["rows"] if row["policy"] == "block-joint:last-queries")
    assert joint["physical_reclaim"] == 0.25
    assert "block-joint.block_size=8" in joint["parameters"]


def test_bad_input(advise):
    refused(advise("--ratio", 0.5, "--blocks", 3), "pass one of --ratio and --blocks")
    refused(advise("--runtime", "none"), "unknown runtime")
    refused(advise("--matters", "speed"), "module:function")
    refused(advise("--matters", "no_such:thing"), "can't be imported")
    refused(advise("--block-size", 64), "in whole blocks of 64")
    refused(advise("--block-size", 48), "in whole blocks of 48")  # nothing was measured, so nothing is bound
    refused(advise("--copy-budget", 2), "copy_budget")
    refused(advise("--blocks", 0), "--blocks is 0: pass 1 to 11, of prompts of 192 tokens in blocks of 16")
    refused(advise("--blocks", 12), "--blocks is 12: pass 1 to 11")
    refused(advise("--blocks", 1, "--context", 0), "context")
    refused(advise("--blocks", 1, "--block-size", 192), "a block of 192 holds all 192 tokens")


def test_copies_that_exceed_the_budget_are_said_to(advise):
    answer = advise("--copy-budget", 0.001)
    snapkv = next(line for line in answer.out.splitlines() if " snapkv " in line)
    assert ">0.1%" in snapkv
    assert "packing would exceed the copy budget" in " ".join(answer.out.split())


def test_a_folder_goes_on_with_another_pool_and_other_trials(advise, tmp_path):
    assert advise("--prompts", 1).status == 0
    made = {
        file: file.stat().st_mtime_ns for file in (tmp_path / "out" / "masks").rglob("*") if file.is_file()
    }
    answer = advise("--prompts", 1, "--pool-gib", 2, "--trials", 3, "--json", "-")
    assert (answer.status, "1 prompt of" in answer.err) == (0, True)
    fresh = advise("--prompts", 1, "--pool-gib", 2, "--trials", 3, "--out", tmp_path / "fresh", "--json", "-")
    assert json.loads(answer.out) == json.loads(fresh.out)
    assert made
    assert made == {file: file.stat().st_mtime_ns for file in made}
    parameters = json.loads((tmp_path / "out" / "run.json").read_text())["parameters"]
    assert (parameters["pool_gib"], parameters["trials"]) == (2.0, 3)
    refused(advise("--prompts", 2), "was begun with")
