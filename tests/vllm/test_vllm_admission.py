"""A small pool on purpose: who gets in, with and without eviction, and what vLLM's free list shows."""

from dataclasses import replace

import numpy as np
import pytest
from observed import FULL

from kvreclaim import BlockLayout, audit
from kvreclaim.effective import effective_mask
from kvreclaim.runtimes.vllm.options import Options

REQUESTS = 8
NEW = 64 if FULL else 20
CASES = [
    # options, least and most requests that run at once
    (Options("none"), 2, 2),
    (Options("snapkv", 128, "pack"), 5, 8),
    (Options("snapkv", 128, "mask"), 2, 2),
    (Options("snapkv", 128, "free"), 2, 2),
    (Options("streaming-llm", 128, "free"), 4, 8),
    (Options("block-joint", 128, "free"), 5, 8),
]
CHOSEN = CASES if FULL else CASES[:2] + CASES[3:]


@pytest.mark.parametrize(("options", "least", "most"), CHOSEN, ids=lambda case: getattr(case, "policy", None))
def test_admission(engine, prompts, options, least, most):
    run = engine.run([prompts[0]] * REQUESTS, options, NEW)
    assert least <= run.peak_running <= most
    assert run.free_blocks_end == engine.free_blocks() == run.pool_blocks == 40
    assert all(len(output.output_tokens) == NEW for output in run.outputs)
    tokens = len(prompts[0])
    for record in run.evictions:
        assert record.blocks_before == -(-tokens // 32)
        assert record.held <= record.tokens == tokens
        assert (record.moved_pairs, record.moved_bytes) == (0, 0) or options.mode == "pack"
        left = -(-record.held // 32)
        assert record.blocks_freed == record.blocks_before - left
        if options.mode == "pack":
            assert record.held == record.kept == 128
            assert record.dead_pairs == 0
        if options.policy == "block-joint":
            assert record.held == record.kept == 102  # 6 in the last block, and three whole ones
            assert record.blocks_freed == 13
            assert record.dead_pairs == 0
    evicts = options.policy != "none"
    assert len(run.evictions) == REQUESTS * evicts


def test_a_copy_budget_is_kept_and_more_of_it_frees_more(engine, prompts):
    freed = []
    for limit in (0, 300_000, None):
        options = Options("snapkv", 128, "pack", copy_budget=limit)
        (record,) = engine.run(prompts[:1], options, 2).evictions
        assert limit is None or record.moved_bytes <= limit
        assert record.moved_bytes == record.moved_pairs * 2 * 64 * 4
        freed.append(record.blocks_freed)
    assert freed[0] < freed[1] < freed[2] == 13
    (free,) = engine.run(prompts[:1], Options("snapkv", 128, "free"), 2).evictions
    assert free.blocks_freed == freed[0]


@pytest.mark.parametrize(
    "options",
    [Options("snapkv", 96, "free"), Options("streaming-llm", 96, "free"), Options("knorm", 32, "free")],
    ids=lambda options: options.policy,
)
def test_free_gives_back_what_the_ledger_says_and_sees_the_effective_mask(engine, prompts, options):
    for record in engine.run(prompts, replace(options, record_masks=True), 2).evictions:
        layout = BlockLayout(block_size=32)
        assert record.blocks_freed == audit(record.asked, layout).free_blocks
        assert np.array_equal(record.effective, effective_mask(record.asked, layout).array)
        assert record.kept_pairs == record.asked.sum()
        assert record.attended_pairs == record.effective.sum()
        assert record.dead_pairs == record.attended_pairs - record.kept_pairs


def test_pack_needs_the_blocks_that_the_ledger_says(engine, prompts):
    for record in engine.run(prompts, Options("snapkv", 96, "pack", record_masks=True), 2).evictions:
        packing = audit(record.asked, BlockLayout(block_size=32)).packing
        assert record.blocks_before - record.blocks_freed == packing.blocks_needed == 3
        # The ledger counts the pairs of blocks that leave; within the last block, some move up as well.
        assert packing.moved_pairs <= record.moved_pairs < packing.moved_pairs + 90 * 32
        assert np.array_equal(record.effective, record.asked)
