"""The measurement: its tables against the masks it saved, alike in any number of processes, gone on with."""

import csv
import json
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tiny_model
from small_models import smollm2, tiny_gemma3, tiny_llama, torch

from kvreclaim import BlockLayout, InputError, KeepMask, audit
from kvreclaim.capture.matched.fit import SNAPKV_AT_HALF
from kvreclaim.capture.measure.plan import Plan
from kvreclaim.capture.measure.prompts import TOPICS, Prompt, cut_prompts, topics_text
from kvreclaim.capture.measure.run import measure
from kvreclaim.capture.measure.settings import Settings
from kvreclaim.layout import BLOCK_TABLES

MEASURED = (
    "model,prompt,policy,ratio,retained,tokens,block_size,block_tables,physical_reclaim,reclaim_efficiency,"
    "fragmentation,stranded,packing_reclaim,packing_moved_pairs,kl,delta_nll,top1"
)
MATCHED = (
    "policy,target_kl,ratio,retained,block_tables,remedy,physical_reclaim,low,high,moved_bytes,admitted,"
    "reached,below,above"
)
CELL_SECONDS = 60


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny Llama as a directory, and a text of its words."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "text").write_text(tiny_model.text(3000))
    return tiny_model.save(tiny_llama(), folder / "llama"), folder / "text"


def settings(tiny, **other):
    model, text = tiny
    given = {
        "model": str(model),
        "texts": (str(text),),
        "policies": ("snapkv", "streaming-llm", "adakv:snapkv", "observed-attention", "random"),
        "ratios": (0.3, 0.5, 0.8),
        "context": 160,
        "prompts": 3,
        "next_tokens": 24,
        "block_sizes": (16, 8),
    }
    return Settings(**{**given, **other})


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """A results folder of one process."""
    out = tmp_path_factory.mktemp("measured") / "one"
    measure(settings(tiny), out)
    return out


def rows_of(file):
    with file.open() as opened:
        return list(csv.DictReader(opened))


def contents(folder):
    """What every file holds, but the date of the run and what a killed process was about to write."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".tmp"]
    found = {str(file.relative_to(folder)): file.read_bytes() for file in files}
    run = json.loads(found["run.json"])
    run.pop("created")
    return {**found, "run.json": json.dumps(run)}


def differing(one, other):
    """Names of files that are not the same in two folders."""
    mine, others = contents(one), contents(other)
    return {name for name in {*mine, *others} if mine.get(name) != others.get(name)}


def test_files_and_columns(tiny, folder):
    assert {file.name for file in folder.iterdir()} == {
        "cells",
        "masks",
        "measured.csv",
        "matched.csv",
        "matched_prompts.csv",
        "interactive_data.json",
        "run.json",
    }
    assert (folder / "measured.csv").read_text().splitlines()[0] == MEASURED
    assert (folder / "matched.csv").read_text().splitlines()[0] == MATCHED
    run = json.loads((folder / "run.json").read_text())
    assert (run["command"], run["kinds"]) == ("measure", ["measured"])
    assert {"torch", "transformers", "kvpress"} <= set(run["versions"])
    assert run["parameters"]["model"] == str(tiny[0])
    assert {row["model"] for row in rows_of(folder / "measured.csv")} == {"llama"}
    assert [cut["source"] for cut in run["parameters"]["prompt_texts"]] == [str(tiny[1])] * 3


def test_rows_are_the_audit_of_the_saved_masks(tiny, folder):
    rows = rows_of(folder / "measured.csv")
    asked = settings(tiny)
    assert len(rows) == 3 * len(asked.policies) * len(asked.ratios) * 2 * 3
    keys = [
        (row["prompt"], row["policy"], float(row["ratio"]), int(row["block_size"]), row["block_tables"])
        for row in rows
    ]
    prompts = [f"prompt-{number}" for number in (1, 2, 3)]
    assert keys == list(product(prompts, asked.policies, asked.ratios, asked.block_sizes, BLOCK_TABLES))
    for key, row in zip(keys, rows, strict=True):
        prompt, policy, ratio, size, tables = key
        mask = KeepMask.load(folder / "masks" / prompt / f"ratio-{ratio}" / f"{policy.replace(':', '+')}.npz")
        assert (mask.policy, mask.metadata.ratio, mask.tokens) == (policy, ratio, 160)
        ledger = audit(mask, BlockLayout(size, tables))
        assert float(row["physical_reclaim"]) == pytest.approx(ledger.physical_reclaim, abs=1e-6)
        assert float(row["stranded"]) == pytest.approx(ledger.stranded, abs=1e-6)
        assert int(row["packing_moved_pairs"]) == ledger.packing.moved_pairs
        assert float(row["retained"]) == pytest.approx(mask.array.mean(), abs=1e-6)


def test_what_is_evicted_costs_quality(folder):
    rows = [row for row in rows_of(folder / "measured.csv") if row["policy"] == "random"]
    kl = {
        ratio: np.mean([float(row["kl"]) for row in rows if row["ratio"] == ratio])
        for ratio in ("0.3", "0.8")
    }
    assert 0 < kl["0.3"] < kl["0.8"]
    assert all(0 <= float(row["top1"]) <= 1 for row in rows)


def test_matched_quality(tiny, folder):
    rows = rows_of(folder / "matched.csv")
    assert len(rows) == 5 * 3 * 3
    snapkv = [row for row in rows if row["policy"] == "snapkv"]
    assert {(row["ratio"], row["retained"], row["reached"]) for row in snapkv} == {("0.5", "0.5", "3")}
    assert all(float(row["low"]) <= float(row["physical_reclaim"]) <= float(row["high"]) for row in rows)
    for row in rows_of(folder / "matched_prompts.csv"):
        mask = KeepMask.load(
            folder / "masks" / row["prompt"] / "matched" / f"{row['policy'].replace(':', '+')}.npz"
        )
        assert float(row["retained"]) == pytest.approx(mask.array.mean(), abs=1e-6)
        assert float(row["ratio"]) == pytest.approx(mask.metadata.ratio, abs=1e-6)
        if row["policy"] == "snapkv":
            assert row["kl"] == row["target_kl"]
        if row["reached"] == "below":
            assert (row["retained"], row["kl"]) == ("1", "0")


def test_block_maps(folder):
    maps = json.loads((folder / "interactive_data.json").read_text())["block_maps"]
    views = [shown["view"] for shown in maps if shown["title"] == "snapkv"]
    assert views == [
        "all layers and heads",
        "layer 0",
        "layer 1",
        "layer 2",
        "layer 1, head 0",
        "layer 1, head 1",
    ]
    assert [shown["view"] for shown in maps] == 5 * views
    mask = KeepMask.load(folder / "masks" / "prompt-1" / "ratio-0.5" / "snapkv.npz").array
    head = next(shown for shown in maps if shown["id"] == "snapkv/layer 1, head 1")
    frame = next(frame for frame in head["frames"] if frame["compression_ratio"] == 0.5)
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(frame["keep"]), np.uint8))[:160]
    assert (bits == mask[1, 1]).all()


def test_processes_make_no_difference(tiny, folder, tmp_path):
    steps = []
    measure(settings(tiny), tmp_path / "two", jobs=2, progress=lambda *step: steps.append(step))
    assert differing(tmp_path / "two", folder) == set()
    assert steps == [(done, 60) for done in range(61)]


def test_a_second_run_measures_nothing_and_changes_nothing(tiny, folder):
    before, steps = contents(folder), []
    cells = {file: file.stat().st_mtime_ns for file in folder.rglob("cells/**/*.json")}
    measure(settings(tiny), folder, progress=lambda *step: steps.append(step))
    assert steps == [(0, 0)]
    assert contents(folder) == before
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("cells/**/*.json")} == cells


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_run_is_gone_on_with(tiny, folder, tmp_path, jobs):
    out = tmp_path / "killed"
    process = start(tiny, out, jobs)
    done = wait_for(lambda: sorted(out.rglob("cells/**/*.json")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not children_of(process.pid))
    assert not (out / "measured.csv").exists()
    kept = {file: file.stat().st_mtime_ns for file in done}
    steps = []
    measure(settings(tiny), out, progress=lambda *step: steps.append(step))
    assert 0 < steps[-1][1] < 60
    assert differing(out, folder) == set()
    assert all(file.stat().st_mtime_ns == time for file, time in kept.items())


def start(tiny, out, jobs):
    asked = settings(tiny)
    code = (
        "from kvreclaim.capture.measure.run import measure\n"
        "from kvreclaim.capture.measure.settings import Settings\n"
        f"if __name__ == '__main__': measure({asked!r}, {str(out)!r}, {jobs})\n"
    )
    script = out.with_suffix(".py")  # a file, for what is spawned runs it too
    script.write_text(code)
    return subprocess.Popen([sys.executable, str(script)])


def wait_for(found):
    end = time.monotonic() + CELL_SECONDS
    while time.monotonic() < end:
        if answer := found():
            return answer
        time.sleep(0.01)
    raise AssertionError("it takes too long")


def children_of(parent):
    """Processes, still running, that a process (perhaps gone) had spawned: they name it in their command."""
    children = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"parent_pid={parent}".encode() in command.read_bytes():
                children.append(int(command.parent.name))
        except OSError:  # gone meanwhile
            continue
    return children


def test_other_parameters_in_the_same_folder_are_refused(tiny, folder):
    for other, words in (
        ({"context": 150}, "context 160, this is 150"),
        ({"policies": ("snapkv",)}, "other policies"),
        ({"ratios": (0.5,)}, "other ratios"),
        ({"target_kl": 0.1}, "target kl None, this is 0.1"),
    ):
        with pytest.raises(InputError, match=f"was begun with {words}; pass another --out"):
            measure(settings(tiny, **other), folder)


def test_another_text_of_the_same_name_is_refused(tiny, tmp_path):
    text = tmp_path / "text"
    text.write_text(tiny_model.text(1000, seed=1))
    asked = settings(tiny, texts=(str(text),), policies=("streaming-llm",), ratios=(0.5,))
    measure(asked, tmp_path / "out")
    text.write_text(tiny_model.text(1000, seed=2))
    with pytest.raises(InputError, match="was begun with other prompt texts"):
        measure(asked, tmp_path / "out")


def test_a_damaged_cell_is_measured_again(tiny, folder, tmp_path):
    asked = settings(tiny, policies=("streaming-llm",), prompts=1)
    measure(asked, tmp_path / "out")
    before = contents(tmp_path / "out")
    cells = sorted((tmp_path / "out").rglob("cells/**/*.json"))
    cells[0].write_text("{")
    cells[1].unlink()
    next((tmp_path / "out").rglob("masks/prompt-1/ratio-0.8/*.npz")).unlink()
    steps = []
    measure(asked, tmp_path / "out", progress=lambda *step: steps.append(step))
    assert steps[-1] == (3, 3)
    assert contents(tmp_path / "out") == before


def test_without_a_target_nothing_is_matched(tiny, tmp_path):
    found = measure(settings(tiny, policies=("knorm",), ratios=(0.25,)), tmp_path / "out")
    assert found.matched == found.matched_prompts == ()
    assert (tmp_path / "out" / "matched.csv").read_text().startswith(MATCHED)


def test_a_target_given_as_a_number(tiny, tmp_path):
    found = measure(settings(tiny, policies=("knorm", "random"), target_kl=0.05), tmp_path / "out")
    assert {row.target_kl for row in found.matched_prompts} == {0.05}


def test_a_model_with_windows(tmp_path):
    """Gemma's sliding layers are not evicted from: what lies before their window is free in any case."""
    (tmp_path / "text").write_text(tiny_model.text(1000))
    tiny = tiny_model.save(tiny_gemma3(), tmp_path / "gemma"), tmp_path / "text"
    asked = settings(tiny, policies=("streaming-llm",), ratios=(0.5,), context=128, prompts=1)
    found = measure(asked, tmp_path / "out")
    mask = KeepMask.load(next((tmp_path / "out").rglob("masks/**/*.npz")))
    assert mask.array[[0, 2]].all()
    assert mask.array[[1, 3]].mean() == 0.5
    layout = BlockLayout(16, "shared", _windows())
    shared = next(row for row in found.measured if (row.block_size, row.block_tables) == (16, "shared"))
    assert shared.physical_reclaim == audit(mask, layout).physical_reclaim > 0.5


def _windows():
    from kvreclaim.capture.inside.attention_layers import geometry_of

    return geometry_of(tiny_gemma3().config).layer_groups()


class Words:
    """A tokenizer of words, with or without a token at the start."""

    def __init__(self, bos_token_id=None):
        self.bos_token_id = bos_token_id

    def __call__(self, text, add_special_tokens=True):
        start = [self.bos_token_id] if add_special_tokens and self.bos_token_id is not None else []
        return type("Encoding", (), {"input_ids": [*start, *map(int, text.replace("a", "0").split())]})


def numbers(first, last):
    return " ".join(map(str, range(first, last)))


def test_prompts_are_spread_and_do_not_overlap():
    cut = cut_prompts({"a": numbers(0, 100), "b": numbers(100, 160)}, Words(), 5, 8, 2)
    assert [(prompt.name, prompt.source, prompt.first_token) for prompt in cut] == [
        ("prompt-1", "a", 0),
        ("prompt-2", "a", 30),
        ("prompt-3", "a", 60),
        ("prompt-4", "a", 90),
        ("prompt-5", "b", 20),
    ]
    assert cut[4].ids == tuple(range(120, 128)) and cut[4].next_ids == (128, 129)


def test_prompts_begin_with_the_token_that_a_text_begins_with():
    cut = cut_prompts({"a": numbers(0, 18)}, Words(bos_token_id=99), 2, 8, 2)
    assert [prompt.ids for prompt in cut] == [(99, *range(7)), (99, *range(9, 16))]
    assert [prompt.next_ids for prompt in cut] == [(7, 8), (16, 17)]


def test_the_default_text_is_prose_that_does_not_repeat():
    paragraphs = topics_text()[TOPICS].split("\n\n")
    assert len(set(paragraphs)) == len(paragraphs) > 300
    assert sum(paragraph.endswith((".", ":", ")")) for paragraph in paragraphs) > 0.9 * len(paragraphs)
    assert not any("::=" in paragraph for paragraph in paragraphs)


def test_a_text_too_short():
    with pytest.raises(InputError, match="a, b: long enough for 2 of 3 prompts of 8 tokens and 2 next ones"):
        cut_prompts({"a": numbers(0, 19), "b": numbers(0, 19)}, Words(), 3, 8, 2)


@pytest.mark.parametrize("jobs", [1, 2, 3, 4, 16])
def test_work_is_divided_without_loss_and_evenly(jobs):
    prompts = tuple(Prompt(f"prompt-{number}", "a", 0, (1,), (2,)) for number in range(5))
    policies = ("a", "b", "c", "d", "e", "f")
    plan = Plan("m", policies, (0.5,), prompts, SNAPKV_AT_HALF)
    parts = list(plan.parts(jobs))
    assert sorted((prompt.name, policy) for prompt, names in parts for policy in names) == sorted(
        product([prompt.name for prompt in prompts], policies)
    )
    whole = [names for _, names in parts if names == policies]
    assert len(whole) == (5 if jobs == 1 else 5 // jobs * jobs)
    shares = [len(names) for _, names in parts if names != policies]
    assert not shares or max(shares) - min(shares) <= 1


def test_settings_out_of_range():
    for other, words in (
        ({"ratios": (1.5,)}, "a ratio is 1.5"),
        ({"ratios": (0.0,)}, "a ratio is 0.0"),
        ({"ratios": ()}, "no ratios"),
        ({"policies": ()}, "no policies"),
        ({"prompts": 0}, "prompts is 0"),
        ({"next_tokens": 1}, "next_tokens is 1"),
        ({"block_sizes": (0,)}, "block_size is 0"),
        ({"target_kl": 0.0}, "target_kl is 0"),
    ):
        with pytest.raises(InputError, match=words):
            Settings("m", **other)


def test_one_thread_only_while_it_measures(tiny, tmp_path):
    torch.set_num_threads(2)
    try:
        measure(settings(tiny, policies=("streaming-llm",), ratios=(0.5,), prompts=1), tmp_path / "out")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_smollm2_at_a_half(tmp_path):
    """StreamingLLM frees what it evicts but one block; SnapKV nothing in a shared table."""
    smollm2()
    asked = Settings(
        "smollm2-135m",
        policies=("snapkv", "streaming-llm"),
        ratios=(0.5,),
        prompts=1,
        next_tokens=32,
        block_sizes=(16,),
    )
    found = measure(asked, tmp_path / "out")
    reclaim = {(row.policy, row.block_tables): row.physical_reclaim for row in found.measured}
    assert {reclaim["streaming-llm", tables] for tables in BLOCK_TABLES} == {63 / 128}
    assert reclaim["snapkv", "shared"] < 0.005
    assert 0.15 <= reclaim["snapkv", "per_head"] <= 0.30
    matched = next(row for row in found.matched if row.policy == "snapkv")
    assert (matched.ratio, matched.retained, matched.reached) == (0.5, 0.5, 1)
    assert 0 < matched.target_kl < 0.2
