"""Compaction between the steps of a running engine: blocks come back bit by bit, and nothing else changes."""

import json
from dataclasses import replace

import numpy as np
import pytest
from observed import FULL, assert_same, first_difference, parts

from kvreclaim.cost import CopyCost
from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm.options import Options

LAYERS = 30
PAIR = 2 * 64 * 4
TOKEN = LAYERS * 3 * PAIR
"""Bytes of a pair, and of all pairs of a token, in SmolLM2-135M."""

COUNT = 48
COMPACT = Options("token-joint", 96, "compact", recent=32, scores="tova", buffer=20, copy_budget=4 * TOKEN)
BY_HEAD = Options("snapkv", 96, "compact", window=32, buffer=20, copy_budget=8 * TOKEN)
COST = CopyCost(fixed=5e-5, per_run=1e-6, per_byte=1e-9)
LATENCY = 2.5e-3


@pytest.fixture(scope="module")
def copy_cost(tmp_path_factory):
    """A file as ``calibrate copy --json`` writes it, of a machine made up."""
    constants = {"fixed_seconds": 5e-5, "seconds_per_run": 1e-6, "bytes_per_second": 1e9}
    found = {name: {"value": value, "low": None, "high": None} for name, value in constants.items()}
    file = tmp_path_factory.mktemp("cost") / "copies.json"
    file.write_text(json.dumps([{"device": "cpu", "way": "pack", **found}]))
    return str(file)


def conserved(step, running):
    """Every block is in the free queue or in the row of one request, and both halves know the same rows."""
    core = running.llm.llm_engine.engine_core.engine_core
    rows = core.scheduler.kvreclaim._manager.req_to_blocks
    held = [block.block_id for row in rows.values() for block in row]
    assert len(set(held)) == len(held)
    assert running.free_blocks() + len(held) == running.pool_blocks
    half = core.model_executor.driver_worker.worker.kvreclaim_half
    for request in core.scheduler.running:
        _, ids = half._row_of(request.request_id)
        assert ids.tolist() == [block.block_id for block in rows[request.request_id]]


def says_what_a_mask_says(engine, reference, prompts, options, ties):
    """Run two prompts compacted and masked; they part at ties alone, and keep and see the same."""
    recorded = replace(options, record_masks=True)
    run = engine.run(prompts[:2], recorded, COUNT, after_step=conserved)
    as_mask = replace(recorded, mode="mask", copy_budget=None, latency_budget=None, copy_cost=None)
    masked = engine.run(prompts[:2], as_mask, COUNT)
    parted = []
    for number, (said, other) in enumerate(zip(run.outputs, masked.outputs, strict=True)):
        evictions = [record for record in parts(run, number) if record.asked is not None]
        place, _ = first_difference(said.output_tokens, other.output_tokens, [0.0] * COUNT)
        for record, of_mask in zip(evictions, parts(masked, number), strict=True):
            if place is None or record.computed_tokens <= len(said.prompt_tokens) + place:
                assert record.computed_tokens == of_mask.computed_tokens
                assert np.array_equal(record.asked, of_mask.asked)
                assert np.array_equal(record.effective, of_mask.effective)
        parted.append(place is not None)
        if place is not None:  # at a tie alone: the reference says how close it is
            assert_same(run, number, reference, [])
            assert_same(masked, number, reference, [])
    ties[f"{options.policy}-compact"] = (sum(parted), len(parted))
    assert run.free_blocks_end == run.pool_blocks
    assert masked.blocks_freed == 0
    for record in run.evictions:
        assert (record.moved_pairs > 0) == (record.asked is None)  # an eviction moves nothing
        assert record.attended_pairs == record.kept_pairs
    return run


def by_step(run):
    """The compactions of each step."""
    steps = {}
    for record in run.evictions:
        if record.asked is None:
            steps.setdefault(record.step, []).append(record)
    return steps


@pytest.mark.parametrize("options", [COMPACT, BY_HEAD], ids=lambda options: options.policy)
def test_outputs_are_those_of_a_mask_while_blocks_come_back(engine, reference, prompts, options, ties):
    run = says_what_a_mask_says(engine, reference, prompts, options, ties)
    moved = [sum(record.moved_bytes for record in records) for records in by_step(run).values()]
    assert max(moved) <= options.copy_budget
    assert any(  # a compaction that took several steps
        len([record for record in parts(run, 0) if record.event == event]) > 2 for event in range(3)
    )
    last = parts(run, 0)[-1]
    assert last.dead_pairs < 32 * LAYERS * 3  # less than a block
    assert last.priced_seconds is None
    at_once = sum(record.blocks_freed for record in run.evictions if record.asked is not None)
    assert run.blocks_freed > at_once


@pytest.mark.parametrize(
    "options", [BY_HEAD, Options("adakv", 96, "compact", window=32)], ids=lambda options: options.policy
)
def test_no_step_costs_more_seconds_than_it_may(engine, reference, prompts, options, copy_cost, ties):
    limited = replace(options, copy_budget=None, latency_budget=LATENCY, copy_cost=copy_cost)
    run = says_what_a_mask_says(engine, reference, prompts, limited, ties)
    steps = by_step(run).values()
    assert len(steps) > 1
    for records in steps:
        pairs, runs = (sum(getattr(one, name) for one in records) for name in ("moved_pairs", "runs"))
        seconds = LAYERS * COST.fixed + runs * COST.per_run + pairs * PAIR * COST.per_byte
        (priced,) = {record.priced_seconds for record in records}
        assert priced == pytest.approx(seconds)
        assert seconds <= LATENCY + 1e-12
    assert {record.priced_seconds for record in run.evictions if record.asked is not None} == {None}


@pytest.mark.parametrize("options", [COMPACT, BY_HEAD], ids=lambda options: options.policy)
def test_without_a_limit_a_row_is_compacted_in_the_step_of_its_eviction(engine, prompts, options):
    run = engine.run(prompts[:1], replace(options, copy_budget=None, buffer=None), 3, after_step=conserved)
    eviction, compaction = run.evictions
    assert (eviction.step, eviction.event) == (compaction.step, compaction.event)
    assert eviction.held == compaction.tokens
    assert compaction.held < 96 + 32
    assert eviction.blocks_freed + compaction.blocks_freed == 17 - 4


def test_budgets_below_a_pair_are_refused(engine, copy_cost):
    with pytest.raises(InputError, match=f"moves no pair of this model: pass at least {PAIR}"):
        engine.configure(replace(COMPACT, copy_budget=PAIR - 1))
    with pytest.raises(InputError, match=r"latency_budget 0.0015 moves no pair, which costs 0.0015 seconds"):
        engine.configure(replace(BY_HEAD, latency_budget=1.5e-3, copy_cost=copy_cost))


def test_a_file_without_the_cost_of_packs_is_refused(engine, tmp_path):
    file = tmp_path / "copies.json"
    file.write_text("[]")
    with pytest.raises(InputError, match="no cost of way pack on cpu: write it with kvreclaim"):
        engine.configure(replace(BY_HEAD, latency_budget=1.0, copy_cost=str(file)))


@pytest.mark.skipif(not FULL, reason="of the whole matrix: make test-vllm-full")
def test_the_pool_is_conserved_through_preemptions(engine, prompts):
    """Rows that grow until one is preempted, some of them half compacted."""
    long = prompts[0]
    asked = [long[:340], long[50:390], long[100:440], long[150:360]]
    options = replace(COMPACT, budget=300, buffer=None, copy_budget=TOKEN)
    run = engine.run(asked, options, 40, after_step=conserved)
    assert run.preemptions > 0
    assert any(record.moved_pairs for record in run.evictions)
    assert run.free_blocks_end == run.pool_blocks
