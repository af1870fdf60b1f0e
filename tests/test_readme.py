"""The README's examples run as they stand."""

import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from study_run import study

from kvreclaim.study.published import COMPATIBLE, EXACT, WITHIN

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def test_the_python_example_runs_and_prints_what_it_says():
    example, _ = blocks("python")  # the other one needs the extra: tests/models/test_docs_example.py
    done = subprocess.run([sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    saving, reclaim = (float(number) for number in first.split())
    assert f"{saving:.3f} of the pairs evicted, {reclaim:.3f} of the blocks free" in example
    assert f"# {last}\n" in example


def commands():
    """The README's commands, without comments and what they are piped into."""
    lines = [line.split("#")[0].split("|")[0].strip() for block in blocks("") for line in block.splitlines()]
    return [line for line in lines if line.startswith("kvreclaim ")]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """What a reader has in a clone: the example masks, and what earlier commands wrote."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


@pytest.mark.parametrize("command", commands())
def test_every_command_runs_in_the_order_of_the_readme(clone, command):
    words = command.replace("kvreclaim", f"{shlex.quote(sys.executable)} -m kvreclaim", 1)
    done = subprocess.run(["sh", "-c", words], cwd=clone, capture_output=True, text=True)
    assert done.returncode == ("--fail-under" in command), done.stderr
    assert done.stdout
    assert done.stderr == "" or "--json -" in command


def test_there_are_commands(clone):
    assert len(commands()) >= 8
    assert (clone / "index.html").exists()


def test_the_counts_of_the_reproduction():
    text = " ".join(README.split())
    within = [figure for figure in study().published if figure.status == WITHIN]
    words = sum(figure.in_words for figure in within)
    statuses = Counter(figure.status for figure in study().published)
    assert statuses == {EXACT: 14, WITHIN: len(within), COMPATIBLE: 1}
    assert (
        f"Of {len(study().published)} printed figures and claims, {statuses[EXACT]} come out exactly" in text
    )
    assert f"{len(within) - words} figures lie within rounding and three standard errors" in text
    assert f"{words} claims in words hold" in text
    law = next(figure for figure in study().published if figure.status == COMPATIBLE)
    assert f"{law.published} slots per move" in text
    assert f"expectation, {law.oracle:.2f}" in text


def at_matched_quality():
    """The README's table of the recorded measurement, from its file."""
    recorded = pl.read_csv(ROOT / "results/smollm2-135m/matched.csv").filter(block_tables="shared")
    yield "| policy | evicts | freed without a copy | after packing | it moves | admitted, no copy / packed |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for policy in recorded["policy"].unique(maintain_order=True):
        free, packed = (
            recorded.row(by_predicate=(pl.col("policy") == policy) & (pl.col("remedy") == remedy), named=True)
            for remedy in ("zero_copy", "packing")
        )
        freed = [
            f"{row['physical_reclaim']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" for row in (free, packed)
        ]
        moved, admitted = packed["moved_bytes"] / 2**20, f"{free['admitted']:g} / {packed['admitted']:g}"
        cells = [f"`{policy}`", f"{1 - free['retained']:.3f}", *freed, f"{moved:.2f} MiB", admitted]
        yield f"| {' | '.join(cells)} |"


def in_vllm_at_matched_quality():
    """The README's table of the recorded runs in vLLM, from their files."""
    runs = list(pl.read_csv(ROOT / "results/vllm-matched/runs.csv").iter_rows(named=True))
    yield "| policy | mode | evicts | blocks back, of 17 | copied | at once | KL seen | as predicted |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for run in runs:
        each, moved = (
            run["observed_blocks_freed"] / run["requests"],
            run["moved_bytes"] / 2**20 / run["requests"],
        )
        named = (
            ("full cache", "", "0")
            if run["ratio"] is None
            else (f"`{run['policy']}`", run["mode"], f"{run['ratio']:.3f}")
        )
        kl = "0"
        if run["kl_effective"] is not None:
            kl = f"{run['kl_effective']:.4f} [{run['kl_effective_low']:.4f}, {run['kl_effective_high']:.4f}]"
        same = "yes" if run["unequal"] == "nothing" else "no"
        cells = [*named, f"{each:.3g}", f"{moved:.1f} MiB", f"{run['observed_peak_running']}", kl, same]
        yield f"| {' | '.join(cells)} |"


def test_the_table_of_vllm_at_matched_quality_is_the_recorded_one():
    assert "\n".join(in_vllm_at_matched_quality()) in README


def test_needles_are_the_recorded():
    seen = pl.read_csv(ROOT / "results/smollm2-135m/needles.csv").filter(question_seen=True)
    found = dict(seen.select("policy", "solved").rows())
    assert seen["full_solved"].unique().to_list() == [64]
    chunks, rest = found["chunkkv:chunk_length=16:snapkv"], ("keydiff", "tova", "streaming-llm")
    told = "still finds {}, KeyDiff {}, TOVA {}, StreamingLLM {}"
    assert told.format(chunks, *(found[name] for name in rest)) in README.replace("\n", " ")
    assert found["snapkv"] == found["h2o"] == 9


def test_how_far_the_harm_is_from_the_target_is_the_recorded():
    recorded = pl.read_csv(ROOT / "results/smollm2-135m/matched_prompts.csv").filter(reached="inside")
    off = recorded["kl"] / recorded["target_kl"]
    assert f"KL is {off.min():.2f} to {off.max():.2f} times the target" in README.replace("\n", " ")


def test_the_table_at_matched_quality_is_the_recorded_one():
    assert "\n".join(at_matched_quality()) in README


def test_what_lies_in_the_report(clone):
    table = README.partition("In `report/` lie:")[2].split("\n\n")[1]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    made = {path.name + "/" * path.is_dir() for path in (clone / "report").iterdir()}
    assert named == made | {"real-masks/"}


@pytest.mark.parametrize("name", sorted(path.name for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]))
def test_links_lead_somewhere(name):
    file = next(path for path in (ROOT / name, ROOT / "docs" / name) if path.exists())
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", file.read_text()):
        assert target.startswith("https://") or (file.parent / target).exists(), target
