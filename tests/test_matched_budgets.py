"""Budgets at matched quality, out of a folder that ``measure`` wrote."""

import json

import numpy as np
import pytest

from kvreclaim import BlockLayout, InputError
from kvreclaim.policies import BlockJoint
from kvreclaim.policies.joint import whole_budget
from kvreclaim.results import as_csv
from kvreclaim.runtimes.matched import matched_budgets
from kvreclaim.runtimes.observation import Scenario
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.runtimes.vllm.selection import select

SCENARIO = Scenario("here", prompt_tokens=520)
COLUMNS = ("policy", "target_kl", "ratio", "block_tables", "remedy", "reached", "below", "above")


def row(policy, ratio, below=0, above=0):
    kinds = [("shared", "zero_copy"), ("shared", "packing"), ("per_head", "zero_copy")]
    known = {
        "policy": policy,
        "target_kl": 0.02,
        "ratio": ratio,
        "reached": 8,
        "below": below,
        "above": above,
    }
    return [{**known, "block_tables": tables, "remedy": remedy} for tables, remedy in kinds]


def measured(folder, rows, command="measure", context=520):
    (folder / "run.json").write_text(json.dumps({"command": command, "parameters": {"context": context}}))
    (folder / "matched.csv").write_text(as_csv(COLUMNS, [one for few in rows for one in few]))
    return folder


def test_a_policy_evicts_what_its_ratio_says(tmp_path):
    rows = [
        row("snapkv", 0.5),
        row("adakv:snapkv", 0.75),
        row("effective:block_size=32:streaming-llm", 0.61, above=2),
        row("knorm", 0.0, below=8),
        row("snapkv:window_size=32", 0.5),
    ]
    snapkv, adakv, streaming, knorm, narrow = matched_budgets(measured(tmp_path, rows), SCENARIO)
    assert snapkv.options == Options("snapkv", budget=260, mode="pack")
    assert adakv.options == Options("adakv", budget=130, mode="pack")
    assert streaming.options == Options("streaming-llm", budget=202, mode="free")
    assert (streaming.ratio, streaming.target_kl, streaming.outside) == (0.61, 0.02, 2)
    assert (knorm.options.budget, knorm.outside) == (520, 8)  # nothing may go: all is kept
    assert narrow.options == Options("snapkv", budget=260, window=32)
    assert [one.name for one in (adakv, streaming, narrow)] == [
        *("adakv:snapkv", "streaming-llm", "snapkv:window_size=32"),
    ]


def test_block_coherent_policies_take_scores_and_whole_blocks(tmp_path):
    rows = [
        row("block-joint:block_size=32:last-queries", 0.5),
        row("block-joint:block_size=32:heads=max:sinks=8:snapkv:window_size=32", 0.5),
        row("effective:block_size=32:block-joint:block_size=32:rkv", 0.5),
        row("block-swap:block_size=32:copies=0.01:last-queries", 0.75),
        row("token-joint:block_size=32:last-queries", 0.5),
        row("paged-eviction:block_size=32", 0.5),
        row("block-joint:block_size=32:knorm", 0.01),
    ]
    found = [budget.options for budget in matched_budgets(measured(tmp_path, rows), SCENARIO)]
    whole = {"budget": 264, "mode": "free"}  # 260 kept: 8 in the last block, and eight blocks
    assert found == [
        Options("block-joint", **whole, scores="last-queries"),
        Options("block-joint", **whole, heads="max", sinks=8, scores="snapkv", window=32),
        Options("block-joint", **whole, scores="rkv"),
        Options("block-swap", budget=136, copies=0.01, scores="last-queries"),
        Options("token-joint", budget=260, scores="last-queries"),
        Options("paged-eviction", **whole),
        Options("block-joint", budget=520, mode="free", scores="knorm"),  # 514 end within a block
    ]


def test_triattention_takes_the_centres_of_the_model(tmp_path):
    file = tmp_path / "centres.npz"
    file.touch()
    rows = [
        row("triattention", 0.5),
        row("effective:block_size=32:triattention", 0.5),
        row("block-joint:block_size=32:recent=96:triattention:recent=64", 0.5),
        row("snapkv", 0.5),
    ]
    folder = measured(tmp_path, rows)
    found = [budget.options for budget in matched_budgets(folder, SCENARIO, str(file))]
    joint = {"scores": "triattention", "recent": 96, "window": 64}
    assert found == [
        Options("triattention", 260, centres=str(file)),
        Options("triattention", 260, "free", centres=str(file)),
        Options("block-joint", 264, "free", centres=str(file), **joint),
        Options("snapkv", 260),
    ]
    with pytest.raises(InputError, match=r"^triattention wants the model's query centres: pass --centres"):
        matched_budgets(folder, SCENARIO)
    with pytest.raises(InputError, match="none of TriAttention's scores: leave out --centres"):
        matched_budgets(measured(tmp_path, rows[3:]), SCENARIO, str(file))


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.4, 0.5, 0.6, 0.75])
def test_a_whole_block_budget_is_what_the_plugin_keeps_and_covers_what_was_measured(tmp_path, ratio):
    (found,) = matched_budgets(measured(tmp_path, [row("block-joint:block_size=32:rkv", ratio)]), SCENARIO)
    scores = np.random.default_rng(1).random((2, 3, 520)).astype(np.float32)
    press = BlockJoint().select(scores, int(520 * (1 - ratio)), BlockLayout(32)).array
    where = np.broadcast_to(np.arange(520, dtype=np.int32), scores.shape)
    kept = select(found.options, scores, where, np.ones(scores.shape, bool), 32, 0)
    assert set(kept.sum(axis=-1).ravel().tolist()) == {found.options.budget}
    assert whole_budget(found.options.budget, 520, 32) == found.options.budget
    assert (kept | press == kept).all()
    assert (kept & ~press).sum(axis=-1).max() < 32  # the rest of one block


@pytest.mark.parametrize(
    "policy, said",
    [
        ("block-joint:last-queries", "in other blocks: measure block-joint:block_size=32:PRESS$"),
        ("paged-eviction", "in other blocks: measure paged-eviction:block_size=32$"),
        ("block-joint:block_size=32:expected-attention", "is no policy"),
        ("block-joint:block_size=32:block_tables=per_head:snapkv", "has no parameter block_tables"),
        ("block-joint", "is no policy"),
        ("block-joint:block_size=32", "is no policy"),
        ("expected-attention", "expected-attention is no policy of the plugin: measure one of "),
        ("effective:block_size=16:snapkv", r"in other blocks: measure effective:block_size=32:PRESS$"),
        ("effective:block_size=32:keydiff", "keydiff is no policy"),
    ],
)
def test_policies_that_the_runtime_does_not_have(tmp_path, policy, said):
    with pytest.raises(InputError, match=said):
        matched_budgets(measured(tmp_path, [row(policy, 0.5)]), SCENARIO)


def test_folders_that_do_not_fit(tmp_path):
    with pytest.raises(
        InputError, match="holds no matched quality: pass a folder that kvreclaim measure wrote"
    ):
        matched_budgets(tmp_path, SCENARIO)
    with pytest.raises(InputError, match="holds no matched quality"):
        matched_budgets(measured(tmp_path, [row("snapkv", 0.5)], command="audit"), SCENARIO)
    with pytest.raises(
        InputError, match="prompts of 2048 tokens: pass --prompt-tokens 2048, or measure with"
    ):
        matched_budgets(measured(tmp_path, [row("snapkv", 0.5)], context=2048), SCENARIO)
    with pytest.raises(InputError, match="holds no matched quality"):
        matched_budgets(measured(tmp_path, [row("snapkv", "much")]), SCENARIO)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row("snapkv", 0.5), row("snapkv", 0.5)],
        [row("snapkv", -0.05)],
        [row("snapkv", 1.0)],
        [row("snapkv", float("inf"))],
        [row("snapkv", float("nan"))],
    ],
    ids=["no rows", "twice", "negative", "all of it", "infinite", "nan"],
)
def test_numbers_that_are_no_budget(tmp_path, rows):
    with pytest.raises(InputError, match="holds no matched quality"):
        matched_budgets(measured(tmp_path, rows), SCENARIO)


def test_another_model_is_refused(tmp_path):
    folder = measured(tmp_path, [row("snapkv", 0.5)])
    parameters = {"context": 520, "model": "models/other"}
    (folder / "run.json").write_text(json.dumps({"command": "measure", "parameters": parameters}))
    with pytest.raises(InputError, match="was measured on models/other: pass --model models/other"):
        matched_budgets(folder, SCENARIO)
    parameters["model"] = "there/here"
    (folder / "run.json").write_text(json.dumps({"command": "measure", "parameters": parameters}))
    assert len(matched_budgets(folder, SCENARIO)) == 1
