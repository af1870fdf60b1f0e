"""Compaction between two steps of the engine, over the rows of all running requests.

    rows with dead slots ──▶ PoolOccupancy ──▶ compaction.plan_step, in its budgets ──▶ a plan for each row

Each layer and head moves its own pairs. What a step leaves undone, a later one goes on with. The slot that a
pair came from is dead, and attention skips it, as all dead slots.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from kvreclaim.compaction import PoolOccupancy, TokenCopy, plan_step
from kvreclaim.cost import CopyCost
from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm.plan import Bools, Indices, RowPlan

FREE = CopyCost(fixed=0.0, per_run=0.0, per_byte=0.0)
"""Copies without a price."""


@dataclass(frozen=True)
class StepBudget:
    """What the compaction of a step may cost.

    Parameters
    ----------
    pair_bytes
        Bytes of a pair, K and V.
    layers
        Of the model: a step copies once in each.
    copy_bytes
        The most bytes to move, over all rows; None for no limit.
    latency
        The most seconds that copies may take by their cost, over all rows; None for no limit.
    cost
        Of copies within a layer's cache; None where they have no price.

    Raises
    ------
    InputError
        If a budget does not pay for one pair.
    """

    pair_bytes: int
    layers: int
    copy_bytes: int | None = None
    latency: float | None = None
    cost: CopyCost | None = None

    def __post_init__(self) -> None:
        if self.copy_bytes is not None and self.copy_bytes < self.pair_bytes:
            raise InputError(
                f"copy_budget {self.copy_bytes} moves no pair of this model: pass at least {self.pair_bytes}"
            )
        least = self.copy.price.fixed + float(self.copy.seconds(np.array(1), np.array(1)))
        if self.latency is not None and self.latency < least:
            raise InputError(
                f"latency_budget {self.latency:g} moves no pair, which costs {least:.2g} seconds: pass more"
            )

    @property
    def copy(self) -> TokenCopy:
        """What it takes to move a pair."""
        one = self.cost or FREE
        price = CopyCost(one.fixed * self.layers, one.per_run, one.per_byte)
        return TokenCopy(price, token_bytes=self.pair_bytes)

    @property
    def pairs(self) -> int | None:
        """The most pairs to move."""
        return None if self.copy_bytes is None else self.copy_bytes // self.pair_bytes


@dataclass(frozen=True)
class CompactionStep:
    """What moves now.

    Attributes
    ----------
    plans
        Of the rows that change, by request.
    seconds
        What the copies cost; None where they have no price.
    """

    plans: dict[str, RowPlan]
    seconds: float | None


def plan_rows(rows: Mapping[str, Bools], block_size: int, budget: StepBudget) -> CompactionStep:
    """Plan what moves now, so that the most blocks are freed.

    Parameters
    ----------
    rows
        By request, bool ``[layers, kv_heads, slots]``: the live pairs of its filled slots.
    block_size
        Tokens of a block.
    budget
        What the step may cost.
    """
    tables: dict[Hashable, range] = {}
    end = 0
    for request, live in rows.items():
        start, end = end, end + -(-live.shape[-1] // block_size)
        tables[request] = range(start, end)
    by_head: dict[Hashable, Bools] = {
        request: live.reshape(-1, live.shape[-1]) for request, live in rows.items()
    }
    pool = PoolOccupancy.of_tables(tables, by_head, np.zeros(end, np.bool_), block_size)
    step = plan_step(pool, budget.copy, copy_budget=budget.pairs, latency_budget=budget.latency)
    plans = {}
    for request in rows:
        table = tables[request]
        own = np.flatnonzero((step.source[:, 0] >= table.start) & (step.source[:, 0] < table.stop))
        own = own[np.argsort(step.head[own], kind="stable")]
        first = np.array([table.start, 0])
        source, destination = (
            (places[own] - first) @ [block_size, 1] for places in (step.source, step.destination)
        )
        emptied = step.freed[np.isin(step.freed, table)] - table.start
        if len(own) or len(emptied):
            plans[request] = _row_plan(
                rows[request], (step.head[own], source, destination), emptied, block_size
            )
    return CompactionStep(plans, None if budget.cost is None else step.seconds)


def _row_plan(
    live: Bools, moves: tuple[Indices, Indices, Indices], emptied: Indices, block_size: int
) -> RowPlan:
    """Return a row's plan from heads, slots left and slots taken, and the blocks that go back."""
    head, source, destination = moves
    filled = live.shape[-1]
    after = live.reshape(-1, filled).copy()
    after[head, source] = False
    after[head, destination] = True
    staying = np.setdiff1d(np.arange(-(-filled // block_size)), emptied)
    slots = (staying[:, None] * block_size + np.arange(block_size)).ravel()
    slots = slots[slots < filled]
    kept = after[:, slots].reshape(*live.shape[:2], len(slots))
    return RowPlan(staying, slots, head, source, destination, kept, block_size)
