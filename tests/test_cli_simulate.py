"""``simulate`` and ``plan``: answers, documented keys, refusals, and what they write."""

import dataclasses
import json
from pathlib import Path

import polars as pl
import pytest
from command_line import call, names, refused
from test_json_docs import keys_of

from kvreclaim.cli.traffic_options import OPTIONS
from kvreclaim.report.folder import Folder
from kvreclaim.report.registry import sections
from kvreclaim.serving.scenario import Scenario

TRACE = Path(__file__).parents[1] / "examples" / "traces" / "azure-conv-1000.csv"
STEP = ("--step-time", "0.012,2e-5,1e-7,9e-5")


def answer(*arguments):
    found = call(*arguments, "--json", "-")
    assert found.status == 0, found.err
    return json.loads(found.out)


def test_simulate_says_what_is_documented():
    found = answer("simulate", TRACE, "--blocks", 1200, *STEP)
    assert set(found) == keys_of("## `simulate`")
    assert (found["requests"], found["refused"], found["blocks"]) == (1000, 0, 1199)
    assert found["pool_binding"]
    assert found["peak_waiting"] > 0
    assert found["ttft_mean"] < found["latency_p50"] < found["latency_p99"]


def test_an_ample_pool_is_not_binding_and_an_eviction_changes_nothing():
    full = answer("simulate", TRACE, "--blocks", 100_000, *STEP)
    screen = call("simulate", TRACE, "--blocks", 100_000, *STEP, "--policy", "streaming-llm").out
    assert not full["pool_binding"]
    assert "not binding" in screen
    assert "admits nobody" in screen


def test_what_mask_free_pack_and_reuse_do():
    common = ("simulate", TRACE, "--blocks", 1200, *STEP)
    full = answer(*common)
    by_mode = {
        mode: answer(*common, "--policy", "streaming-llm", "--mode", mode)
        for mode in ("mask", "free", "pack", "reuse")
    }
    assert by_mode["mask"]["blocks_freed"] == by_mode["reuse"]["blocks_freed"] == 0
    assert by_mode["mask"]["latency_p99"] == full["latency_p99"]
    assert by_mode["pack"]["blocks_freed"] >= by_mode["free"]["blocks_freed"] > 0
    assert by_mode["pack"]["latency_p99"] < full["latency_p99"]


def test_copies_are_charged_to_the_step():
    common = ("simulate", TRACE, "--blocks", 100_000, *STEP, "--policy", "per-head")
    free, dear = answer(*common), answer(*common, "--copy-event", 0.05)
    assert dear["evictions"] == free["evictions"]
    assert dear["latency_p50"] > free["latency_p50"]


def test_a_request_larger_than_the_pool_is_refused_by_name_and_the_run_goes_on(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,50,5\n1,5000,5\n2,50,5\n")
    found = call("simulate", tmp_path / "t.csv", "--blocks", 20, *STEP)
    assert "request 1 refused: 5,005 tokens" in found.out
    assert answer("simulate", tmp_path / "t.csv", "--blocks", 20, *STEP)["refused"] == 1


def test_a_results_folder_and_its_page(tmp_path):
    out = tmp_path / "out"
    assert call("simulate", TRACE, "--blocks", 900, *STEP, "--page-blocks", 8, "--out", out).status == 0
    assert names(out) == sorted(
        ["percentiles.csv", "requests.parquet", "run.json", "timeline.csv", "traffic.csv"]
    )
    requests = pl.read_parquet(out / "requests.parquet")
    assert requests.height == 1000
    assert (requests["first_token"] > requests["arrival"]).all()
    assert pl.read_csv(out / "timeline.csv")["held_pages"].max() > 1
    (section,) = sections([Folder(out)])
    assert (section.id, len(section.figures)) == ("traffic", 3)
    assert call("page", out, "--out", tmp_path / "page.html").status == 0
    refused(call("plan", TRACE, "--gpu", "rtx-4090", "--out", out), "holds the results of 'simulate'")


def test_plan_compares_methods_and_modes(tmp_path):
    out = tmp_path / "out"
    rows = answer("plan", TRACE, "--gpu", "rtx-4090", "--requests", 300, "--out", out)
    assert all(set(row) == keys_of("## `plan`") for row in rows)
    named = {(row["name"], row["mode"]): row for row in rows}
    assert len(rows) == 1 + 2 + 2 * 4
    full = named["full cache", None]
    assert named["fp8", None]["blocks"] == pytest.approx(2 * full["blocks"], abs=3)
    assert named["per-head", "free"]["load"] == named["per-head", "mask"]["load"] == full["load"]
    assert named["per-head", "pack"]["load"] > full["load"]
    assert named["streaming-llm", "free"]["requests_at_once_per_gpu"] > full["requests_at_once_per_gpu"]
    assert named["fp8", None]["load"] > full["load"]
    section = sections([Folder(out)])[0]
    assert [figure.id for figure in section.figures] == [
        "traffic-capacity",
        "traffic-time",
        "traffic-memory",
        "traffic-waiting",
    ]
    own, method, narrow = (float(key.value) for key in section.key_numbers)
    rate = "requests_per_second_per_gpu"
    assert own == pytest.approx(full[rate], rel=0.01)
    assert method == pytest.approx(max(row[rate] for row in rows if row["mode"]), rel=0.01)
    assert narrow == pytest.approx(named["int8", None][rate], rel=0.01)
    assert {**named["int8", None], "name": "fp8"} == named["fp8", None]
    prose = " ".join(section.prose)
    assert "llama-3.1-8b on rtx-4090. A step's time: a roofline" in prose
    assert "coincide: full cache; streaming-llm, mask; per-head, mask; per-head, free" in prose
    assert "At the trace's own load" in section.items[-1].caption
    out = tmp_path / "fast"
    answer("plan", TRACE, "--gpu", "rtx-4090", "--requests", 100, "--load", 2, "--out", out)
    assert "At 2 times the trace's own load" in sections([Folder(out)])[0].items[-1].caption


def test_simulate_says_what_the_pool_does_without_the_eviction(tmp_path):
    packed = ("--policy", "streaming-llm", "--mode", "pack")
    tight = call("simulate", TRACE, "--blocks", 1200, *packed, "--out", tmp_path / "out")
    full = answer("simulate", TRACE, "--blocks", 1200)
    assert full["pool_binding"]
    assert f"binds: {full['preemptions']} preemptions, up to {full['peak_waiting']}" in " ".join(
        tight.out.split()
    )
    assert (
        "with this eviction the pool is not binding"
        in sections([Folder(tmp_path / "out")])[0].prose[2].lower()
    )
    roomy = call("simulate", TRACE, "--blocks", 9000, *packed)
    assert "Nor is it without the eviction, which costs here and admits nobody" in " ".join(roomy.out.split())


def test_a_huge_request_is_refused_by_name_whatever_is_evicted(tmp_path):
    huge = tmp_path / "huge.csv"
    huge.write_text("arrival,prompt,output\n0,2000000000,10\n1,100,10\n")
    found = call("simulate", huge, "--blocks", 100, "--policy", "per-head")
    assert found.status == 0
    assert "request 0 refused: 2,000,000,010 tokens" in " ".join(found.out.split())
    refused(call("plan", huge), "evictions are simulated up to 134,217,728")


def said(*arguments):
    found = call("plan", TRACE, *arguments)
    assert found.status == 0, found.err
    return " ".join(found.out.split())


def test_plan_says_what_binds_where_the_pool_does_not():
    ample = said("--gpu", "h200", "--requests", 200)
    assert "the pool is not binding" in ample
    assert "not the pool but the GPU's time" in ample
    assert "To carry more: a faster GPU" in ample
    few = said("--gpu", "h200", "--requests", 200, "--max-num-seqs", 2)
    assert "not the pool but max_num_seqs: raise --max-num-seqs first" in few
    assert "the first 200 requests only" in few
    assert "only" not in said("--gpu", "h200", "--requests", 1000).partition("At load")[0]


def test_what_plan_says_follows_from_its_rows():
    rows = {(row["name"], row["mode"]): row for row in answer("plan", TRACE, "--gpu", "rtx-4090")}
    words = said("--gpu", "rtx-4090")
    full, pack = rows["full cache", None], rows["per-head", "pack"]
    gain = max(row["load"] for row in rows.values() if row["mode"]) / full["load"] - 1
    assert "Giving memory back raises the load most with " in words
    assert f"per-head, pack: {gain:+.0%}." in words
    assert pack["load"] > full["load"]
    assert f"wait for blocks from load {full['pool_binds_from']:.3g} on" in words
    assert "what binds is memory" in words
    assert full["requests"] == 1000


def test_plan_says_that_no_load_or_any_load_meets_the_target(tmp_path):
    none = said("--ttft-p99", "1e-9", "--requests", 200)
    assert "No load meets the target: at the lowest tried the TTFT p99 is" in none
    assert "No memory helps there" in none
    assert "0.00 " not in none.partition("Load: simulated")[0].partition("load")[2].replace("0.000", "")
    out = tmp_path / "out"
    rows = answer("plan", TRACE, "--ttft-p99", 1000, "--requests", 200, "--out", out)
    assert {(row["outcome"], row["load"]) for row in rows} == {("any load", None)}
    assert "Even if all requests came at once" in said("--ttft-p99", 1000, "--requests", 200)
    section = sections([Folder(out)])[0]
    assert section.items[0].id == "traffic-capacities"
    assert section.items[0].rows[0][-2:] == ("any", "nothing")


def test_refused_requests_mean_that_the_pool_binds():
    words = said("--blocks", 200)
    assert "full cache: the pool is too small, 75 requests longer than it and refused, request 23" in words
    assert "the pool is not binding" not in words
    screen = " ".join(call("simulate", TRACE, "--blocks", 200, *STEP).out.split())
    assert "The pool binds: it is too small for 75 requests" in screen
    assert "not binding" not in screen


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulate", "none.csv"], ["none.csv", "no such file"]),
        (["simulate", TRACE, "--gpu", "gtx"], ["gtx", "h100"]),
        (["simulate", TRACE, "--model", "gpt-5"], ["gpt-5"]),
        (["simulate", TRACE, "--model", "llama-3.1-405b"], ["leave no memory"]),
        (["simulate", TRACE, "--blocks", 1], ["blocks", "at least 2"]),
        (["simulate", TRACE, "--block-size", 0], ["block_size"]),
        (["simulate", TRACE, "--load", "-1"], ["load"]),
        (["simulate", TRACE, "--step-time", "1,2"], ["step_time", "four"]),
        (["simulate", TRACE, "--step-time", "fast"], ["step_time 'fast'"]),
        (["simulate", TRACE, "--policy", "lru"], ["lru", "streaming-llm"]),
        (["simulate", TRACE, "--policy", "per-head", "--mode", "swap"], ["swap", "pack"]),
        (["simulate", TRACE, "--evict-while-decoding", "rkv"], ["evicts nothing"]),
        (["simulate", TRACE, "--share-prefixes"], ["no prefix hashes"]),
        (["simulate", TRACE, "--kv-dtype", "fp4"], ["fp4"]),
        (["simulate", TRACE, "--requests", -5], ["requests is -5"]),
        (["plan", TRACE, "--requests", -5], ["requests is -5"]),
        (["simulate", TRACE, "--blocks", 3, "--block-size", 2**21], ["block_size", "1048576"]),
        (["simulate", TRACE, "--blocks", "99999999999999999999"], ["blocks", "at most 2147483647"]),
        (["simulate", TRACE, "--blocks", 2**31 - 1, "--page-blocks", 4], ["blocks", "at most 16,777,216"]),
        (["simulate", TRACE, "--rate", 2, "--seed", -1], ["seed is -1"]),
        (["simulate", TRACE, "--max-num-seqs", -1], ["max_num_seqs is -1"]),
        (["simulate", TRACE, "--max-num-batched-tokens", "9" * 20], ["max_num_batched_tokens", "at most"]),
        (["simulate", TRACE, "--rate", "nan"], ["rate is nan"]),
        (["simulate", TRACE, "--weights-gib", "-1"], ["weights_gib is -1"]),
        (["simulate", TRACE, "--efficiency", 2], ["efficiency"]),
        (["simulate", TRACE, "--policy", "per-head", "--copy-event", "-1"], ["copy_event is -1"]),
        (["simulate", TRACE, "--page-blocks", -3], ["page_blocks is -3"]),
        (["simulate", TRACE, "--interval", "1e-9"], ["interval", "samples", "longer"]),
        (["simulate", TRACE, "--interval", "5e-324"], ["interval", "samples", "longer"]),
        (["simulate", TRACE, "--load", "1e-320"], ["arrives after", "higher load"]),
        (["simulate", TRACE, "--load", "1e-12"], ["arrives after", "higher load"]),
        (["simulate", TRACE, "--rate", "1e-300"], ["arrives after", "higher load or rate"]),
        (["simulate", TRACE, "--budget", 256], ["--budget does nothing without --evict-while-decoding"]),
        (["plan", TRACE, "--buffer", 256], ["--buffer does nothing without --evict-while-decoding"]),
        (["simulate", TRACE, "--ratio", 0.9], ["--ratio does nothing without --policy"]),
        (["simulate", TRACE, "--mode", "free"], ["--mode does nothing without --policy or --masks"]),
        (["simulate", TRACE, "--copy-token", 1], ["--copy-token does nothing"]),
        (["simulate", TRACE, "--seed", 3], ["--seed does nothing without --rate"]),
        (["simulate", TRACE, "--runtime", "vllm", "--block-size", 32], ["--runtime replaces --block-size"]),
        (["simulate", TRACE, *STEP, "--efficiency", 0.5], ["--step-time replaces --efficiency"]),
        (["simulate", TRACE, "--masks", "m.npz", "--policy", "per-head"], ["--masks replaces --policy"]),
        (["simulate", TRACE, "--gpus", 3], ["8 KV heads", "3 GPUs"]),
        (["plan", TRACE, "--gpus", 12], ["8 KV heads", "12 GPUs"]),
        (["plan", TRACE, "--ttft-p99", 0], ["latency target"]),
        (["plan", TRACE, "--ttft-p99", "-2"], ["latency target"]),
        (["sweep", "none.toml"], ["none.toml"]),
    ],
)
def test_bad_input(arguments, words):
    refused(call(*arguments), *words)


def test_the_options_have_the_defaults_of_a_scenario():
    fields = {field.name: field.default for field in dataclasses.fields(Scenario)}
    given = {name: option.default for name, option in OPTIONS.items()}
    assert given.pop("step_time") == ""  # a text here, numbers there
    assert given == {name: fields[name] for name in given}
    assert set(fields) - set(given) == {"trace", "step_time", "reserve_full_input"}


@pytest.mark.parametrize(
    "arguments", [["simulate", "t.csv", "--blocks", 900], ["plan", "t.csv"], ["sweep", "t.csv"]]
)
def test_json_does_not_replace_what_is_read(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,50,5\n")
    (tmp_path / "fit.json").write_text("{}")
    refused(call(*arguments, "--json", "./t.csv"), "is what this command reads")
    if arguments[0] != "sweep":
        refused(
            call(*arguments, "--step-time", "fit.json", "--json", "fit.json"), "is what this command reads"
        )
    assert (tmp_path / "t.csv").read_text() == "arrival,prompt,output\n0,50,5\n"


# Where the numbers come from


def test_plan_with_a_rule_while_decoding_with_groups_and_with_shared_prefixes(tmp_path):
    rule = ("--evict-while-decoding", "rkv", "--budget", 256, "--buffer", 128)
    rows = answer("plan", TRACE, "--gpu", "rtx-4090", "--requests", 200, *rule)
    added = {(row["name"], row["mode"]) for row in rows if row["name"] == "rkv"}
    assert added == {("rkv", "mask"), ("rkv", "pack"), ("rkv", "reuse")}
    both = answer(
        *("plan", TRACE, "--gpu", "rtx-4090", "--requests", 100, "--evict-while-decoding", "keep-prompt"),
        *("--budget", 256, "--buffer", 128, "--policy", "streaming-llm", "--mode", "free"),
    )
    assert both[-1]["name"] == "streaming-llm + keep-prompt"
    groups = ("--model", "gemma-2-9b", "--gpu", "rtx-4090", "--requests", 100)
    grouped, plain = (answer("plan", TRACE, *groups, *more)[0] for more in (["--hybrid"], []))
    assert grouped["blocks"] > plain["blocks"]
    refused(call("plan", TRACE, "--share-prefixes"), "no prefix hashes")
    lines = [
        {"timestamp": 500 * place, "input_length": 1024, "output_length": 8, "hash_ids": [1, 2 + place % 3]}
        for place in range(600)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = ("--ttft-p99", 0.2)
    shared, alone = (
        answer("plan", tmp_path / "t.jsonl", *target, *more)[0] for more in (["--share-prefixes"], [])
    )
    assert shared["load"] > alone["load"]
    refused(
        call("plan", tmp_path / "t.jsonl", "--share-prefixes", "--hybrid", "--model", "gemma-2-9b"), "groups"
    )
