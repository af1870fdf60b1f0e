"""Closed forms: what eviction and compaction must give, against which simulations and tests are held.

Tokens are laid out from slot 0 in blocks of `block_size` (B); n = ceil(N/B) blocks hold N tokens, the last of
them possibly fewer than B. Physical reclaim is free blocks / n, without any copy.
"""

from kvreclaim.bounds.frontier import FrontierPoint, minimum_loss_frontier
from kvreclaim.bounds.interval import poisson_interval
from kvreclaim.bounds.loss import (
    exponential_loss,
    lognormal_loss,
    low_importance_loss,
    pareto_loss,
    uniform_loss,
)
from kvreclaim.bounds.moves import (
    compaction_moves_lower_bound,
    rice_gap,
    single_hole_ratio_of_means,
    single_hole_slots_per_move,
)
from kvreclaim.bounds.scatter import (
    freed_range,
    independent_efficiency,
    independent_heads_reclaim,
    independent_reclaim,
    random_reclaim,
    worst_case_reclaim,
)
from kvreclaim.bounds.shapes import (
    h2o_asymptote,
    h2o_reclaim,
    snapkv_reclaim_estimate,
    streaming_llm_freed,
    streaming_llm_moved,
)

__all__ = [
    "FrontierPoint",
    "compaction_moves_lower_bound",
    "exponential_loss",
    "freed_range",
    "h2o_asymptote",
    "h2o_reclaim",
    "independent_efficiency",
    "independent_heads_reclaim",
    "independent_reclaim",
    "lognormal_loss",
    "low_importance_loss",
    "minimum_loss_frontier",
    "pareto_loss",
    "poisson_interval",
    "random_reclaim",
    "rice_gap",
    "single_hole_ratio_of_means",
    "single_hole_slots_per_move",
    "snapkv_reclaim_estimate",
    "streaming_llm_freed",
    "streaming_llm_moved",
    "uniform_loss",
    "worst_case_reclaim",
]
