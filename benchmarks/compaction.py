"""Choosing what to compact, and the moves as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.table import Row
from benchmarks.timing import estimate, in_turn
from kvreclaim import BlockLayout, plan_compaction
from kvreclaim.compaction import PoolOccupancy, TokenCopy, cheapest_sources, plan_step

BLOCK_SIZE = 16
MILLION = 1_000_000
MILLIONS = (1, 2, 5, 10)
BLOCKS_OF_REQUEST = 100
STEP_TOKENS = 4096
HEADS = 90  # layers and KV heads of SmolLM2-135M
TABLES = 11


def run(quick: bool) -> Iterator[Row]:
    """Yield the rows; ``quick`` takes a tenth of the blocks."""
    million = MILLION // 10 if quick else MILLION
    blocks = [millions * million for millions in MILLIONS]
    yield from _choose(blocks, "no budget", lambda _: None)
    # Full compaction moves about 3.2 of the 8 live tokens per block here: a quarter of that.
    yield from _choose(blocks, "a budget of .8 tokens per block", lambda count: count * 4 // 5)
    yield _plan(2**18 if quick else 2**22)
    yield _step(100 if quick else 1000)
    yield _step_by_head(5 if quick else 50)
    yield _steps_beside_the_optimum(1000 if quick else 10_000)


def _choose(blocks: list[int], budget_name: str, budget_of: Callable[[int], int | None]) -> Iterator[Row]:
    live = np.random.default_rng(0).binomial(BLOCK_SIZE, 0.5, (1, blocks[-1])).astype(np.uint8)
    choices = [
        partial(cheapest_sources, np.ascontiguousarray(live[:, :count]), BLOCK_SIZE, budget_of(count))
        for count in blocks
    ]
    seconds = in_turn(choices)
    per_block = seconds / np.array(blocks)[:, None]
    name = f"choosing what to compact, {budget_name}"
    for count, own, each in zip(blocks, seconds, per_block, strict=True):
        below = 1.0 if count == blocks[-1] else None
        yield Row(name, f"time for {count:,} blocks", "s", estimate(own), below=below)
        if count != blocks[0]:
            what = f"time a block at {count:,}, of that at {blocks[0]:,}"
            yield Row(name, what, "x", estimate(each / per_block[0]), below=2 if below else None)


def _plan(tokens: int) -> Row:
    mask = np.random.default_rng(0).random(tokens) < 0.5
    (own,) = in_turn([lambda: plan_compaction(mask, BlockLayout(BLOCK_SIZE))])
    moves = plan_compaction(mask, BlockLayout(BLOCK_SIZE)).moved_tokens
    name = f"plan_compaction, {tokens // BLOCK_SIZE:,} blocks"
    return Row(name, f"time for {moves:,} moves, as arrays", "s", estimate(own))


@dataclass(frozen=True)
class _Price:
    """Some machine's: what is timed doesn't depend on it."""

    fixed: float = 20e-6
    per_run: float = 1e-6
    per_byte: float = 1e-11


def _step(requests: int) -> Row:
    """Plan a step over many requests, under a budget of both kinds."""
    owner = np.repeat(np.arange(requests), BLOCKS_OF_REQUEST)
    live = np.random.default_rng(0).random((len(owner), BLOCK_SIZE)) < 0.5
    writable = np.ones(live.shape, np.bool_)
    pool = PoolOccupancy(owner, live, writable, writable.all(axis=1))
    copy = TokenCopy(_Price(), token_bytes=1 << 17, tensors=64)
    plan = partial(plan_step, pool, copy, copy_budget=STEP_TOKENS, latency_budget=1.0)
    (own,) = in_turn([plan])
    name = f"a step of compaction, {len(owner):,} blocks of {requests:,} requests"
    return Row(name, f"time to plan {plan().moved_tokens:,} moves", "s", estimate(own), below=0.05)


def _step_by_head(requests: int) -> Row:
    """Plan a step where each head moves its own pairs, as vLLM's plugin does."""
    owner = np.repeat(np.arange(requests), BLOCK_SIZE)
    live = np.random.default_rng(0).random((HEADS, len(owner), BLOCK_SIZE)) < 0.5
    writable = np.ones(live.shape[1:], np.bool_)
    pool = PoolOccupancy(owner, live, writable, writable.all(axis=1))
    plan = partial(plan_step, pool, TokenCopy(_Price(), token_bytes=512), copy_budget=STEP_TOKENS)
    (own,) = in_turn([plan])
    name = f"a step of compaction by {HEADS} heads, {len(owner):,} blocks of {requests:,} requests"
    return Row(name, f"time to plan {plan().moved_tokens:,} pairs", "s", estimate(own))


def _steps_beside_the_optimum(blocks: int) -> Row:
    """Compact tables of one request in steps, beside the most that as many copies can free of the table."""
    shares = []
    for seed in range(TABLES):
        live = np.random.default_rng(seed).random((blocks, BLOCK_SIZE)) < 0.5
        copies = int(live.sum()) // 10
        best = cheapest_sources(live.sum(axis=1)[None], BLOCK_SIZE, copies).sum()
        everything, owner = np.ones(live.shape, np.bool_), np.zeros(blocks, np.int64)
        emptied, left = 0, copies
        while left:
            pool = PoolOccupancy(owner, live, everything, everything.all(axis=1))
            step = plan_step(pool, _ONE_EACH, copy_budget=min(left, STEP_TOKENS // 16))
            if not step.moved_tokens:
                break
            after = step.applied(live)
            emptied += int((live.any(axis=1) & ~after.any(axis=1)).sum())
            live, left = after, left - step.moved_tokens
        shares.append(emptied / best)
    name = f"compaction in steps of {STEP_TOKENS // 16} tokens, tables of {blocks:,} blocks"
    return Row(name, "blocks freed, of the optimum with as many copies", "x", estimate(shares), at_least=0.95)


_ONE_EACH = TokenCopy(_Price(0.0, 0.0, 0.0), token_bytes=1)
