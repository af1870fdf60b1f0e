"""What a scenario stands for: its pool from model and GPU, its step's time, what its evictions give back."""

from pathlib import Path

import pytest
from command_line import call, refused, write_masks

from kvreclaim.serving.giveback import closed_form, from_masks, from_measured
from kvreclaim.serving.hardware import GIB, Deployment, gpu
from kvreclaim.serving.scenario import Scenario

TRACE = Path(__file__).parents[1] / "examples" / "traces" / "azure-conv-1000.csv"


def test_the_real_runs_pool_follows_from_the_model_and_the_gpu():
    # vLLM 0.19 found 2,588 blocks for Llama-3.1-8B on an RTX 4090.
    made = Scenario(model="llama-3.1-8b", gpu="rtx-4090").settings()
    assert made.blocks == pytest.approx(2588, rel=0.08)


def test_a_runtime_sets_the_block_size_and_memory_can_be_given():
    scenario = Scenario(runtime="lmdeploy", gpu="rtx-4090", gpu_memory_gib=48)
    assert scenario.block_size == scenario.settings().block_size == 64
    assert scenario.deployment().gpu.memory_mib == 48 * 1024
    refused(call("simulate", TRACE, "--runtime", "llama.cpp"), "unknown runtime")
    refused(call("simulate", TRACE, "--gpu-memory-gib", "-1"), "memory")


def test_groups_of_layers_share_a_pool_of_smaller_blocks():
    scenario = Scenario(model="gemma-2-9b", gpu="h100", hybrid=True)
    made = scenario.deployment()
    assert made.group_windows == (4096, None)
    assert made.layers_per_group == 21
    assert scenario.settings().blocks == pytest.approx(
        2 * Scenario(model="gemma-2-9b").settings().blocks, abs=2
    )


def test_a_roofline_is_what_the_data_sheet_allows():
    made = Deployment(Scenario().deployment().geometry, gpu("h100"), weight_bytes=16 * GIB)
    step = made.roofline()
    assert step.base == pytest.approx(16 * GIB / 3.35e12)
    assert step.kv_token == pytest.approx(131_072 / 3.35e12)
    assert step.prefill_token == pytest.approx(2 * 8.03e9 / 989e12)
    assert step.source == "roofline"
    assert made.roofline(0.5).base == pytest.approx(2 * step.base)


@pytest.mark.parametrize(("policy", "freed"), [("streaming-llm", 31), ("block-wise", 32), ("per-head", 0)])
def test_closed_forms_are_those_of_the_bounds(policy, freed):
    rule = closed_form(policy, 0.5, "free").rule(1024, 16)
    assert rule.left_at[1024] == 512
    assert rule.freed_at[1024] == freed


def test_recorded_masks_and_measured_tables_drive_the_traffic(tmp_path):
    import numpy as np

    keep = np.zeros((2, 2, 64), bool)
    keep[:, :, :20] = True  # 2 of 4 blocks live, 20 of 64 tokens
    rule = from_masks(write_masks(tmp_path / "m.npz", m=keep), 16, "free").rule(64, 16)
    assert (rule.freed_at[64], rule.left_at[64]) == (2, 20)
    assert from_masks(tmp_path / "m.npz", 16, "pack").rule(64, 16).left_at[64] == 32
    columns = "policy,ratio,retained,block_size,block_tables,physical_reclaim,packing_reclaim\n"
    (tmp_path / "measured.csv").write_text(columns + "snapkv,0.5,0.5,16,shared,0.25,0.5\n")
    rule = from_measured(tmp_path, "snapkv", 0.5, 16, "free").rule(64, 16)
    assert rule.freed_at[64] == 1
    found = call("simulate", TRACE, "--blocks", 900, "--policy", "tova", "--measured", tmp_path)
    refused(found, "no tova at 0.5", "snapkv")


def test_more_gpus_than_heads_hold_each_head_more_than_once():
    eight, sixteen = (Scenario(gpus=gpus).deployment() for gpus in (8, 16))
    assert sixteen.block_bytes == 2 * eight.block_bytes  # vLLM: at least one KV head on each
    assert sixteen.roofline().kv_token == pytest.approx(eight.roofline().kv_token)
