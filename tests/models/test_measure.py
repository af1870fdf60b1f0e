"""The measurement: its tables against the masks it saved."""

import json
from itertools import product

import numpy as np
import pytest
import tiny_model
from small_models import smollm2, tiny_gemma3
from tiny_measure import rows_of, settings

from kvreclaim import BlockLayout, KeepMask, audit
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


def test_files_and_columns(tiny, folder):
    assert {file.name for file in folder.iterdir()} == {
        "cells",
        "masks",
        "measured.csv",
        "matched.csv",
        "matched_prompts.csv",
        "needles.csv",
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
    assert [shown["view"] for shown in maps] == len({shown["title"] for shown in maps}) * views
    mask = KeepMask.load(folder / "masks" / "prompt-1" / "ratio-0.5" / "snapkv.npz").array
    head = next(shown for shown in maps if shown["id"] == "snapkv/layer 1, head 1")
    frame = next(frame for frame in head["frames"] if frame["compression_ratio"] == 0.5)
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(frame["keep"]), np.uint8))[:160]
    assert (bits == mask[1, 1]).all()


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
