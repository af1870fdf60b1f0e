"""Compaction: what it costs to move live tokens into fewer blocks, and the moves, at once or in steps."""

from kvreclaim.compaction.choose import cheapest_sources, compaction_cost
from kvreclaim.compaction.pack import fewest_moves, packed_slots
from kvreclaim.compaction.plan import CompactionPlan, plan_compaction
from kvreclaim.compaction.pool_occupancy import PoolOccupancy
from kvreclaim.compaction.steps import CopyPrice, StepPlan, TokenCopy, plan_step

__all__ = [
    "CompactionPlan",
    "CopyPrice",
    "PoolOccupancy",
    "StepPlan",
    "TokenCopy",
    "cheapest_sources",
    "compaction_cost",
    "fewest_moves",
    "packed_slots",
    "plan_compaction",
    "plan_step",
]
