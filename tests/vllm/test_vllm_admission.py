"""A small pool on purpose: who gets in, with and without eviction, and what vLLM's free list shows."""

import pytest
from observed import FULL

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
        left = -(-record.held // 32)
        assert record.blocks_freed == record.blocks_before - left
        if options.mode == "pack":
            assert record.held == record.kept == 128
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
