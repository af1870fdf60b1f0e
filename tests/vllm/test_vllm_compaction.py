"""Compaction between the steps of a running engine: blocks come back bit by bit, and nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest
from observed import FULL, assert_same, first_difference, parts

from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm.options import Options

TOKEN = 30 * 3 * 2 * 64 * 4
"""Bytes of a token's KV pairs in SmolLM2-135M."""

COUNT = 48
COMPACT = Options("token-joint", 96, "compact", recent=32, scores="tova", buffer=20, copy_budget=4 * TOKEN)


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


def test_outputs_are_those_of_a_mask_while_blocks_come_back(engine, reference, prompts, ties):
    recorded = replace(COMPACT, record_masks=True)
    run = engine.run(prompts[:2], recorded, COUNT, after_step=conserved)
    masked = engine.run(prompts[:2], replace(recorded, mode="mask", copy_budget=None), COUNT)
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
    ties["token-joint-compact"] = (sum(parted), len(parted))
    assert run.free_blocks_end == run.pool_blocks

    by_step = {}
    for record in run.evictions:
        by_step[record.step] = by_step.get(record.step, 0) + record.moved_bytes
    assert max(by_step.values()) <= 4 * TOKEN
    assert any(  # a compaction that took several steps
        len([record for record in parts(run, 0) if record.event == event]) > 2 for event in range(3)
    )
    for record in run.evictions:
        assert (record.moved_pairs > 0) == (record.asked is None)  # an eviction moves nothing
        assert record.attended_pairs == record.kept_pairs
    last = parts(run, 0)[-1]
    assert last.dead_pairs < 32 * 30 * 3  # less than a block
    at_once = sum(record.blocks_freed for record in run.evictions if record.asked is not None)
    assert run.blocks_freed > at_once
    assert masked.blocks_freed == 0


def test_without_a_limit_a_row_is_compacted_in_the_step_of_its_eviction(engine, prompts):
    options = replace(COMPACT, copy_budget=None, buffer=None)
    run = engine.run(prompts[:1], options, 3, after_step=conserved)
    eviction, compaction = run.evictions
    assert (eviction.step, eviction.event) == (compaction.step, compaction.event)
    assert eviction.held == compaction.tokens
    assert compaction.held < 96 + 32
    assert eviction.blocks_freed + compaction.blocks_freed == 17 - 4


def test_a_budget_below_a_token_is_refused(engine):
    with pytest.raises(InputError, match=f"moves no token of this model: pass at least {TOKEN}"):
        engine.configure(replace(COMPACT, copy_budget=TOKEN - 1))


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
