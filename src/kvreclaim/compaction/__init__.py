"""Compaction: what it costs to move live tokens into fewer blocks, and the moves themselves."""

from kvreclaim.compaction.choose import cheapest_sources, compaction_cost
from kvreclaim.compaction.plan import CompactionPlan, plan_compaction

__all__ = ["CompactionPlan", "cheapest_sources", "compaction_cost", "plan_compaction"]
