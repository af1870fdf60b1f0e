"""Figures printed on compaction and on admission."""

from __future__ import annotations

from kvreclaim.study.admission import NAIVE, WITH_COMPACTION
from kvreclaim.study.compaction import CLUSTERED_HOLE
from kvreclaim.study.published.claims import Above, Below, Exact, HeavyTailed, HeavyTailedAbove, Sampled
from kvreclaim.study.published.figure import Figure
from kvreclaim.study.published.sources import (
    Source,
    closed_form,
    difference,
    farthest,
    quotient,
    share_at_eviction,
    simulated,
)
from kvreclaim.study.settings import HALF, RATIOS


def _compaction(policy: str, metric: str) -> Source:
    return simulated("compaction", policy, HALF, metric)


def _compaction_law(policy: str, metric: str) -> Source:
    return closed_form("compaction", policy, HALF, metric)


def _admitted(policy: str, ratio: float = HALF) -> Source:
    return simulated("admission", policy, ratio, "admitted")


_RANDOM = (
    Figure(
        "compaction-random-moved",
        "Random: tokens that full compaction moves; the oracle is a lower bound on the mean",
        Sampled("1,649"),
        _compaction("random", "moved_tokens"),
        _compaction_law("random", "moved_tokens_lower_bound"),
    ),
    Figure(
        "compaction-random-thousands",
        "Random: moves needed to free the pool (read as over 1,000); the oracle is a lower bound",
        Above("thousands of moves", 1000.0),
        _compaction("random", "moved_tokens"),
        _compaction_law("random", "moved_tokens_lower_bound"),
    ),
    Figure(
        "compaction-random-slots-per-move",
        "Random: token slots freed per token moved; the oracle takes the moves at their lower bound",
        Sampled("2.48"),
        _compaction("random", "slots_per_move"),
        _compaction_law("random", "slots_per_move_upper_bound"),
    ),
    Figure(
        "compaction-random-source",
        "Random: share of the free blocks that eviction itself freed (read as below .005)",
        Below("only through compaction", 0.005),
        share_at_eviction("random"),
    ),
)

_CLUSTERED = (
    Figure(
        "compaction-clustered-slots-per-move",
        "Clustered hole: mean of the runs' token slots freed per token moved, heavy-tailed",
        HeavyTailed("6.65"),
        _compaction(CLUSTERED_HOLE, "slots_per_move"),
        _compaction_law(CLUSTERED_HOLE, "slots_per_move"),
    ),
    Figure(
        "compaction-clustered-total-ratio",
        "Clustered hole: slots per move if blocks already free are credited too (read as over 1,000)",
        HeavyTailedAbove("looks like thousands", 1000.0),
        _compaction(CLUSTERED_HOLE, "total_slots_per_move"),
        _compaction_law(CLUSTERED_HOLE, "total_slots_per_move"),
    ),
    Figure(
        "compaction-orders-of-magnitude",
        "Clustered hole against random, that credited ratio (read as over 100); by what compaction itself "
        "frees it is about 2",
        Above("orders of magnitude cheaper", 100.0),
        quotient(
            _compaction(CLUSTERED_HOLE, "total_slots_per_move"),
            _compaction("random", "total_slots_per_move"),
        ),
    ),
    Figure(
        "compaction-clustered-moved",
        "Clustered hole: share of the survivors that move (read as below .005)",
        Below("little or no copying", 0.005),
        _compaction(CLUSTERED_HOLE, "moved_fraction"),
    ),
    Figure(
        "compaction-clustered-source",
        "Clustered hole: share of the free blocks that eviction itself freed (read as over .99)",
        Above("already free at eviction", 0.99),
        share_at_eviction(CLUSTERED_HOLE),
    ),
)

_BLOCK_WISE = (
    Figure(
        "compaction-block-wise-moved",
        "Block-wise: tokens that compaction moves",
        Exact("no copy at all", 0.0),
        _compaction("block-wise", "moved_tokens"),
    ),
    Figure(
        "compaction-block-wise-source",
        "Block-wise: share of the free blocks that eviction itself freed",
        Exact("already free at eviction", 1.0),
        share_at_eviction("block-wise"),
    ),
)

COMPACTION_FIGURES = _RANDOM + _CLUSTERED + _BLOCK_WISE

ADMISSION_FIGURES = (
    Figure("admission-random", "Random: requests admitted at q = .5", Sampled("0"), _admitted("random")),
    Figure(
        "admission-lowest-importance",
        "Lowest importance: requests admitted at q = .5",
        Sampled("0"),
        _admitted("lowest-importance"),
    ),
    Figure(
        "admission-block-wise",
        "Block-wise: requests admitted at q = .5",
        Exact("32"),
        _admitted("block-wise"),
        closed_form("admission", NAIVE, HALF, "admitted"),
    ),
    Figure(
        "admission-reclaimability-aware",
        "Reclaimability-aware: requests admitted at q = .5",
        Sampled("22.6"),
        _admitted("reclaimability-aware"),
    ),
    Figure(
        "admission-random-compaction",
        "Random and full compaction: requests admitted at q = .5",
        Exact("32"),
        _admitted(WITH_COMPACTION),
        closed_form("admission", NAIVE, HALF, "admitted"),
    ),
    Figure(
        "admission-naive",
        "What the logical saving alone would admit at q = .5",
        Exact("32"),
        closed_form("admission", NAIVE, HALF, "admitted"),
    ),
    Figure(
        "admission-overlap",
        "Block-wise less random and compaction: requests admitted, where they differ most over q",
        Exact("overlap", 0.0),
        farthest(
            0.0, [difference(_admitted("block-wise", q), _admitted(WITH_COMPACTION, q)) for q in RATIOS]
        ),
    ),
)
