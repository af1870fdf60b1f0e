"""Compaction between two steps of the engine, over the rows of all running requests.

    rows with dead slots ──▶ PoolOccupancy ──▶ compaction.plan_step, in a copy budget ──▶ a plan for each row

Whole tokens move: a slot is live if any layer and head has a live pair in it. What a step leaves undone, a
later one goes on with. The slot that a token came from is dead, and attention skips it, as all dead slots.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from kvreclaim.compaction import PoolOccupancy, TokenCopy, plan_step
from kvreclaim.cost import CopyCost
from kvreclaim.runtimes.vllm.plan import Bools, Indices, RowPlan

BY_TOKENS = TokenCopy(CopyCost(fixed=0.0, per_run=0.0, per_byte=0.0), token_bytes=1)
"""Copies without a price: their budget is in tokens."""


def plan_rows(rows: Mapping[str, Bools], block_size: int, copy_budget: int | None) -> dict[str, RowPlan]:
    """Plan what moves now, so that the most blocks are freed.

    Parameters
    ----------
    rows
        By request, bool ``[layers, kv_heads, slots]``: the live pairs of its filled slots.
    block_size
        Tokens of a block.
    copy_budget
        The most tokens to move, over all rows; None for no limit.

    Returns
    -------
    dict
        The plans of the rows that change.
    """
    tables: dict[Hashable, range] = {}
    end = 0
    for request, live in rows.items():
        start, end = end, end + -(-live.shape[-1] // block_size)
        tables[request] = range(start, end)
    if not tables:
        return {}
    alive: dict[Hashable, Bools] = {
        request: np.asarray(live.any(axis=(0, 1))) for request, live in rows.items()
    }
    pool = PoolOccupancy.of_tables(tables, alive, np.zeros(end, np.bool_), block_size)
    step = plan_step(pool, BY_TOKENS, copy_budget=copy_budget)
    plans = {}
    for request in rows:
        table = tables[request]
        own = np.isin(step.source[:, 0], table)
        first = np.array([table.start, 0])
        source, destination = (
            (places[own] - first) @ [block_size, 1] for places in (step.source, step.destination)
        )
        emptied = step.freed[np.isin(step.freed, table)] - table.start
        if len(source) or len(emptied):
            plans[request] = _row_plan(rows[request], source, destination, emptied, block_size)
    return plans


def _row_plan(
    live: Bools, source: Indices, destination: Indices, emptied: Indices, block_size: int
) -> RowPlan:
    """Return a row's plan from the slots that its tokens leave and go to, and the blocks that go back."""
    layers, kv_heads, filled = live.shape
    heads = layers * kv_heads
    after = live.copy()
    after[..., destination] = live[..., source]
    after[..., source] = False
    staying = np.setdiff1d(np.arange(-(-filled // block_size)), emptied)
    slots = (staying[:, None] * block_size + np.arange(block_size)).ravel()
    slots = slots[slots < filled]
    return RowPlan(
        blocks=staying,
        slots=slots,
        head=np.repeat(np.arange(heads), len(source)),
        source=np.tile(source, heads),
        destination=np.tile(destination, heads),
        live=after[..., slots],
        block_size=block_size,
    )
