"""Predictions of runs in vLLM: the scenario that was seen there, and rules by hand."""

from dataclasses import replace

import numpy as np
import pytest

from kvreclaim.bounds import streaming_llm_freed
from kvreclaim.eviction_rules import Progress
from kvreclaim.runtimes.predict import beside, equal, masks_of, needs_masks, place_of, predict, rule_for
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.runtimes.vllm.records import EvictionRecord, ObservedRun, StepRecord
from kvreclaim.scheduling import SchedulerSettings

SCENARIO = SchedulerSettings(40, 32, max_num_seqs=16, max_num_batched_tokens=1024)
PROMPTS = [520] * 8


def scenario(options, masks=None):
    return predict(SCENARIO, PROMPTS, 64, rule_for(options, 32, masks))


def test_the_scenario_that_was_seen_in_vllm():
    """40 usable blocks of 32, 8 requests of about 520 tokens, 64 new: 2 run at once, or 5 with 128 kept."""
    whole, packed = scenario(Options("none")), scenario(Options("streaming-llm", budget=128))
    masked = scenario(Options("snapkv", budget=128, mode="mask"))
    assert whole.summary() == {
        "peak_running": 2,
        "steps": 257,
        "blocks_freed": 0,
        "preemptions": 0,
        "free_blocks_end": 40,
    }
    assert packed.summary() == {
        "peak_running": 5,
        "steps": 131,
        "blocks_freed": 104,
        "preemptions": 0,
        "free_blocks_end": 40,
    }
    assert masked.summary() == whole.summary()
    more = scenario(Options("streaming-llm", budget=130))
    assert sum(more.blocks_freed.values()) == 104 - 8  # 130 kept tokens cost each request a block


def test_streaming_llm_frees_whole_blocks_by_its_closed_form():
    freed = streaming_llm_freed(520, 4, 124, 32)
    found = scenario(Options("streaming-llm", budget=128, mode="free"))
    assert set(found.blocks_freed.values()) == {freed}
    assert found.summary()["peak_running"] >= 4


@pytest.mark.parametrize("policy", ["block-joint", "paged-eviction"])
def test_whole_blocks_for_all_heads_give_back_without_a_copy_what_a_pack_does(policy):
    whole = scenario(Options(policy, budget=128, mode="free"))
    packed = scenario(Options("snapkv", budget=128))
    assert whole.blocks_freed == packed.blocks_freed
    assert whole.summary()["peak_running"] == 6  # 104 slots in those blocks and not 128, so it grows later
    again = rule_for(Options(policy, budget=128, mode="free", buffer=4), 32)
    assert again.slots_left(progress(520, 520, first=True)) == 104  # 8 in the last block, and three more
    assert again.slots_left(progress(552, 136)) == 104
    swapping = rule_for(Options("block-swap", budget=128, buffer=32), 32)
    assert swapping.slots_left(progress(520, 520, first=True)) == 104


def progress(computed, slots, first=False, name=0):
    return Progress(name, 8, computed - 8, computed, 1, slots, first, None if first else 4)


def test_a_row_without_its_dead_blocks_is_a_row_again():
    """Blocks of 4: of tokens 0 to 11 block 1 dies, later block 2; tokens 0 to 3 and the newest stay."""
    rule = rule_for(Options("streaming-llm", budget=6, sinks=2, buffer=4, mode="free"), 4)
    assert rule.slots_left(progress(12, 12, first=True)) == 8  # keeps 0, 1 and 8 to 11: block 1 goes
    assert rule.slots_left(progress(16, 12)) == 8  # keeps 0, 1 and 12 to 15: tokens 8 to 11 go
    assert rule.slots_left(progress(16, 16, first=True)) == 8  # admitted again: two of four blocks go


def test_masks_of_the_run_say_who_lives():
    keep = np.zeros((2, 2, 12), bool)
    keep[0, 0, 0] = keep[1, 1, 9] = True
    masks = {(0, 12): keep}
    free = rule_for(Options("snapkv", budget=6, window=2, mode="free"), 4, masks)
    assert free.slots_left(progress(12, 12, first=True)) == 8  # blocks 0 and 2 hold a live pair
    assert free.slots_left(progress(12, 12, first=True, name=1)) == 12  # no mask: it did not go as predicted
    keep[0, 1, :5] = True
    pack = rule_for(Options("adakv", budget=6, window=2), 4, masks)
    assert pack.slots_left(progress(12, 12, first=True)) == 5  # the fullest head's


def test_a_mask_from_a_file_has_no_budget_to_wait_for():
    rule = rule_for(
        replace(Options("none"), policy="keep-mask", masks=__file__), 4, {(0, 12): np.ones((1, 1, 12), bool)}
    )
    assert rule.slots_left(progress(12, 12, first=True)) == 12


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        (Options("none"), False),
        (Options("streaming-llm", budget=128, mode="free"), False),
        (Options("snapkv", budget=128, mode="free"), True),
        (Options("snapkv", budget=128, mode="pack"), False),
        (Options("adakv", budget=128, mode="pack"), True),
        (Options("block-joint", budget=128, mode="free"), False),
        (Options("paged-eviction", budget=128, mode="free"), False),
        (Options("block-swap", budget=128, mode="free"), True),
        (Options("block-swap", budget=128, mode="pack"), False),
        (Options("token-joint", budget=128, mode="free"), True),
        (Options("adakv", budget=128, mode="mask"), False),
    ],
)
def test_masks_are_needed_where_lengths_do_not_say_it(options, needed):
    assert needs_masks(options) is needed


def test_requests_are_found_by_their_place():
    assert place_of("3.17-0a1b2c") == 17
    assert place_of("3.2") == 2


def observed(prediction):
    """A run that did exactly as predicted."""
    steps, preemptions = [], 0
    for step in prediction.steps:
        preemptions += len(step.preempted)
        counts = (len(step.scheduled), step.running_after, step.waiting_after, preemptions)
        steps.append(StepRecord(step.number + 1, step.free_blocks, *counts))
    evictions = [
        EvictionRecord(
            *(step.number + 1, f"1.{event.name}-ab", 0, "snapkv", "pack", 128, 520),
            *(event.slots, 128, 128, 0, 0, 0, 17, event.blocks_freed, 0, 0, 0, 0.0, 0.0),
        )
        for step in prediction.steps
        for event in step.evictions
    ]
    return ObservedRun(steps, evictions, [], 40, 32, 1.0)


def test_equality_is_said_figure_by_figure():
    prediction = scenario(Options("snapkv", budget=128))
    run = observed(prediction)
    assert set(equal(prediction, run).values()) == {True}
    assert masks_of(run) == {}
    run.steps[3] = replace(run.steps[3], free_blocks=0)
    run.evictions[0] = replace(run.evictions[0], request="1.1-ab")
    said = equal(prediction, run)
    assert [name for name, same in said.items() if not same] == [
        "blocks_freed_by_request",
        "evictions",
        "free_blocks_by_step",
    ]


def test_each_eviction_has_its_prediction_beside():
    """What finds nothing to drop is not predicted; what was predicted and did not come stands last."""
    prediction = scenario(Options("snapkv", budget=128))
    run = observed(prediction)
    (missing,) = [one for one in run.evictions if one.request == "1.3-ab"]
    run.evictions.remove(missing)
    nothing = replace(missing, request="1.0-ab", step=60, blocks_freed=0)
    run.evictions.append(nothing)
    *found, idle, alone = beside(prediction, run)
    assert [(pair.observed.blocks_freed, pair.predicted.blocks_freed) for pair in found] == [(13, 13)] * 7
    assert all(pair.same for pair in found)
    assert (idle.observed, idle.predicted, idle.same) == (nothing, None, True)
    assert (alone.step, alone.place, alone.observed, alone.same) == (missing.step, 3, None, False)
    assert alone.predicted.slots_left == 128
    assert not equal(prediction, run)["evictions"]


@pytest.mark.parametrize("changed", [{"held": 129}, {"tokens": 519}, {"blocks_freed": 12}, {"step": 2}])
def test_an_eviction_that_differs_is_said(changed):
    prediction = scenario(Options("snapkv", budget=128))
    run = observed(prediction)
    run.evictions[0] = replace(run.evictions[0], **changed)
    assert not equal(prediction, run)["evictions"]
