"""Predicted and observed in a running engine are equal: figures, blocks of each request, every step."""

import csv
from collections import Counter

import pytest
from observed import FULL

from kvreclaim.results import ResultsFolder
from kvreclaim.runtimes.observation import Scenario, write
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.scheduling import SchedulerSettings

MAX_TOKENS = 40
MORE = [
    Options("token-joint", budget=96, mode="free", recent=32, scores="tova"),
    Options("blend", budget=96, recent=32, scores="tova"),
    Options("paged-eviction", budget=96, mode="free", buffer=32),
    Options("rkv", budget=96, buffer=24),
    Options("pyramidkv", budget=96),
    Options("block-joint", budget=128, mode="mask", recent=32, scores="knorm"),
]
CHOSEN = [
    Options("none"),
    Options("streaming-llm", budget=96),
    Options("streaming-llm", budget=96, mode="free", buffer=16),
    Options("snapkv", budget=96, buffer=24),
    Options("snapkv", budget=96, mode="free", buffer=16),
    Options("h2o", budget=96, mode="mask"),
    Options("adakv", budget=96),
    Options("block-wise", budget=96, mode="free"),
    Options("block-joint", budget=96, mode="free", recent=32, scores="tova", buffer=24),
    Options("block-swap", budget=96, recent=32, scores="tova", buffer=24),
    *(MORE if FULL else ()),
]


def freed_by_request(folder, seen):
    """What the written table says, as anyone may add it up: blocks freed and predicted, by request."""
    write(ResultsFolder(folder), Scenario("here"), [seen])
    found = {"blocks_freed": Counter(), "predicted_blocks_freed": Counter()}
    with (folder / "evictions.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for column, freed in found.items():
                freed[row["request"]] += int(row[column])
    return found


@pytest.mark.parametrize("options", CHOSEN, ids=lambda options: f"{options.policy}-{options.mode}")
def test_a_run_goes_as_predicted(engine, prompts, options, tmp_path):
    """Four requests that fill the pool, so that one is preempted as they grow, and one that waits."""
    from kvreclaim.runtimes.in_vllm import observe_run

    limits = engine.llm.llm_engine.vllm_config.scheduler_config
    settings = SchedulerSettings(
        engine.pool_blocks, engine.block_size, limits.max_num_seqs, limits.max_num_batched_tokens
    )
    long = prompts[0]
    asked = [long[:340], long[50:390], long[100:440], long[150:360], long[:500]]  # 11 + 11 + 11 + 7 blocks
    seen = observe_run(engine, asked, options, MAX_TOKENS, settings)
    assert seen.unequal == ()
    assert seen.observed == seen.predicted
    assert seen.observed["free_blocks_end"] == engine.pool_blocks
    by_request = freed_by_request(tmp_path, seen)
    assert by_request["predicted_blocks_freed"] == by_request["blocks_freed"]
    assert sum(by_request["blocks_freed"].values()) == seen.predicted["blocks_freed"]
    if options.policy == "none":
        assert seen.observed["preemptions"] > 0
    elif options.mode != "mask":
        assert seen.observed["blocks_freed"] > 0
