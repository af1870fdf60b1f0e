"""Figures printed on the four strategies and on spatial correlation."""

from __future__ import annotations

from kvreclaim.study.published.claims import Below, Exact, Near, Sampled
from kvreclaim.study.published.figure import Figure
from kvreclaim.study.published.sources import (
    Source,
    closed_form,
    difference,
    farthest,
    largest,
    offset,
    simulated,
)
from kvreclaim.study.settings import HALF, RATIOS


def _strategy(policy: str, metric: str, ratio: float = HALF) -> Source:
    return simulated("strategies/lognormal", policy, ratio, metric)


def _strategy_law(policy: str, metric: str) -> Source:
    return closed_form("strategies/lognormal", policy, HALF, metric)


def _reclaim(policy: str, ratio: float) -> Source:
    return _strategy(policy, "physical_reclaim", ratio)


_FOUR = ("random", "lowest-importance", "block-wise", "reclaimability-aware")
_SCATTERED = ("random", "lowest-importance")

_OUTCOMES = (
    Figure(
        "strategies-logical-saving",
        "Logical saving farthest from one half, over the four strategies",
        Exact("50 %"),
        farthest(HALF, [_strategy(policy, "logical_saving") for policy in _FOUR]),
    ),
    *(
        Figure(
            f"strategies-{policy}-reclaim",
            f"{name}: physical reclaim at q = .5",
            Sampled("0.0"),
            _strategy(policy, "physical_reclaim"),
            _strategy_law(policy, "physical_reclaim"),
        )
        for policy, name in zip(_SCATTERED, ("Random", "Lowest importance"), strict=True)
    ),
    Figure(
        "strategies-random-loss",
        "Random: importance loss at q = .5",
        Sampled("50 %"),
        _strategy("random", "importance_loss"),
        _strategy_law("random", "importance_loss"),
    ),
    Figure(
        "strategies-lowest-importance-loss",
        "Lowest importance: importance loss at q = .5",
        Sampled("16 %"),
        _strategy("lowest-importance", "importance_loss"),
        _strategy_law("lowest-importance", "importance_loss"),
    ),
    Figure(
        "strategies-block-wise-reclaim",
        "Block-wise: physical reclaim at q = .5",
        Exact("0.50"),
        _strategy("block-wise", "physical_reclaim"),
        _strategy_law("block-wise", "physical_reclaim"),
    ),
    Figure(
        "strategies-block-wise-efficiency",
        "Block-wise: reclaim efficiency at q = .5",
        Exact("1.0"),
        _strategy("block-wise", "reclaim_efficiency"),
    ),
    Figure(
        "strategies-block-wise-loss",
        "Block-wise: importance loss at q = .5",
        Sampled("38 %"),
        _strategy("block-wise", "importance_loss"),
    ),
    Figure(
        "strategies-reclaimability-aware-reclaim",
        "Reclaimability-aware: physical reclaim at q = .5",
        Sampled("0.36"),
        _strategy("reclaimability-aware", "physical_reclaim"),
    ),
    Figure(
        "strategies-reclaimability-aware-loss",
        "Reclaimability-aware: importance loss at q = .5",
        Sampled("28 %"),
        _strategy("reclaimability-aware", "importance_loss"),
    ),
)

_WORDS = (
    *(
        Figure(
            f"strategies-{policy}-fragmentation",
            f"{name}: fragmentation of the held blocks (read as within .01 of one half)",
            Near("about half", HALF, 0.01),
            _strategy(policy, "fragmentation"),
        )
        for policy, name in zip(_SCATTERED, ("Random", "Lowest importance"), strict=True)
    ),
    Figure(
        "strategies-block-wise-fragmentation",
        "Block-wise: fragmentation of the held blocks (read as below .005)",
        Below("near zero", 0.005),
        _strategy("block-wise", "fragmentation"),
    ),
    Figure(
        "strategies-block-wise-ideal",
        "Block-wise: physical reclaim less the ratio, where they differ most (read as within .01)",
        Near("tracks the ideal", 0.0, 0.01),
        farthest(0.0, [offset(_reclaim("block-wise", q), q) for q in RATIOS]),
    ),
    Figure(
        "strategies-reclaimability-aware-trails",
        "Reclaimability-aware: reclaim less block-wise's, where they are closest (read as below 0)",
        Below("trails it", 0.0),
        largest([difference(_reclaim("reclaimability-aware", q), _reclaim("block-wise", q)) for q in RATIOS]),
    ),
    Figure(
        "strategies-scattered-flat",
        "Random or lowest importance: the most that either frees up to q = .7 (read as below .005)",
        Below("flat until very high ratios", 0.005),
        largest([_reclaim(policy, q) for policy in _SCATTERED for q in RATIOS if q <= 0.7]),
    ),
)

STRATEGY_FIGURES = _OUTCOMES + _WORDS


def _correlation(policy: str, rho: float, metric: str) -> tuple[Source, Source]:
    key = ("correlation", policy, rho, metric)
    return simulated(*key), closed_form(*key)


CORRELATION_FIGURES = (
    Figure(
        "correlation-rho0-reclaim",
        "Lowest importance: physical reclaim at rho = 0",
        Sampled("0.000"),
        *_correlation("lowest-importance", 0.0, "physical_reclaim"),
    ),
    Figure(
        "correlation-rho1-reclaim",
        "Lowest importance: physical reclaim at rho = 1; the oracle is Rice's approximation",
        Sampled("0.465"),
        *_correlation("lowest-importance", 1.0, "physical_reclaim"),
    ),
    Figure(
        "correlation-rho0-gap",
        "Gap to block-wise at rho = 0",
        Sampled("0.50"),
        *_correlation("gap", 0.0, "gap_to_block_wise"),
    ),
    Figure(
        "correlation-rho1-gap",
        "Gap to block-wise at rho = 1; the oracle is Rice's approximation",
        Sampled("0.035"),
        *_correlation("gap", 1.0, "gap_to_block_wise"),
    ),
)
