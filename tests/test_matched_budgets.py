"""Budgets at matched quality, out of a folder that ``measure`` wrote."""

import json

import pytest

from kvreclaim import InputError
from kvreclaim.results import as_csv
from kvreclaim.runtimes.matched import matched_budgets
from kvreclaim.runtimes.observation import Scenario
from kvreclaim.runtimes.vllm.options import Options

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
    ]
    snapkv, adakv, streaming, knorm = matched_budgets(measured(tmp_path, rows), SCENARIO)
    assert snapkv.options == Options("snapkv", budget=260, mode="pack")
    assert adakv.options == Options("adakv", budget=130, mode="pack")
    assert streaming.options == Options("streaming-llm", budget=202, mode="free")
    assert (streaming.ratio, streaming.target_kl, streaming.outside) == (0.61, 0.02, 2)
    assert (knorm.options.budget, knorm.outside) == (520, 8)  # nothing may go: all is kept


@pytest.mark.parametrize(
    "policy, said",
    [
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
