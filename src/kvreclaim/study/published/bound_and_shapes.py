"""Figures printed on the q^B bound and on the realistic shapes."""

from __future__ import annotations

from kvreclaim.study.published.claims import Below, Claim, Exact, Near, Sampled
from kvreclaim.study.published.figure import Figure
from kvreclaim.study.published.sources import (
    Source,
    closed_form,
    deviation,
    farthest,
    poisson_deviation,
    rare,
    rare_deviation,
    simulated,
)
from kvreclaim.study.settings import BLOCK_SIZE, BLOCK_SIZES, HALF
from kvreclaim.study.shapes import BLOCKS, SHAPES


def _bound(policy: str, ratio: float) -> Source:
    return closed_form(f"bound/B={BLOCK_SIZE}", policy, ratio, "physical_reclaim")


def _shape(policy: str, metric: str = "physical_reclaim", block_size: int = BLOCK_SIZE) -> Source:
    return simulated("shapes", policy, block_size, metric)


def _shape_law(policy: str, metric: str = "physical_reclaim", block_size: int = BLOCK_SIZE) -> Source:
    return closed_form("shapes", policy, block_size, metric)


BOUND_FIGURES = (
    Figure(
        "bound-q50",
        "qᴮ at q = .5, B = 16; the oracle is the law of exactly half of 8,192 tokens",
        Exact("0.0015 %"),
        _bound("independent", 0.5),
        _bound("exact", 0.5),
    ),
    Figure(
        "bound-q75",
        "qᴮ at q = .75, B = 16; the oracle is the law of exactly three quarters of 8,192 tokens",
        Exact("1.0 %"),
        _bound("independent", 0.75),
        _bound("exact", 0.75),
    ),
    Figure(
        "bound-large-cut",
        "qᴮ after a large cut, q = .7 at B = 16 (read as below .005)",
        Below("almost no reusable blocks", 0.005),
        _bound("independent", 0.7),
        _bound("exact", 0.7),
    ),
)

_STREAMING = (
    Figure(
        "shapes-streaming-llm-reclaim",
        "StreamingLLM: physical reclaim, B = 16",
        Exact("0.47"),
        _shape("streaming-llm"),
        _shape_law("streaming-llm"),
    ),
    Figure(
        "shapes-streaming-llm-reclaim-std",
        "StreamingLLM: its deviation between runs, which is that of the budget",
        Exact("0.02"),
        deviation(_shape("streaming-llm")),
        deviation(_shape_law("streaming-llm")),
    ),
    Figure(
        "shapes-streaming-llm-moved",
        "StreamingLLM: survivors that full compaction moves, B = 16",
        Exact("0.6 %"),
        _shape("streaming-llm", "moved_fraction"),
        _shape_law("streaming-llm", "moved_fraction"),
    ),
    *(
        Figure(
            f"shapes-streaming-llm-reclaim-b{block_size}",
            f"StreamingLLM: physical reclaim, B = {block_size} (read as within .01)",
            Near("near 0.47", 0.47, 0.01),
            _shape("streaming-llm", block_size=block_size),
            _shape_law("streaming-llm", block_size=block_size),
        )
        for block_size in BLOCK_SIZES
    ),
)

_SNAPKV = (
    Figure(
        "shapes-snapkv-reclaim",
        "SnapKV: physical reclaim, B = 16, clusters of 12",
        Sampled("0.29"),
        _shape("snapkv"),
    ),
    Figure(
        "shapes-snapkv-reclaim-std",
        "SnapKV: its deviation between runs",
        Sampled("0.04"),
        deviation(_shape("snapkv")),
    ),
)


def _h2o(identifier: str, claim: Claim, block_size: int = BLOCK_SIZE) -> Figure:
    law = _shape_law("h2o", block_size=block_size)
    return Figure(
        f"shapes-h2o-{identifier}",
        f"H2O: physical reclaim, B = {block_size}",
        claim,
        rare(_shape("h2o", block_size=block_size), law, BLOCKS),
        law,
    )


_H2O = (
    _h2o("reclaim", Sampled("0.001")),
    Figure(
        "shapes-h2o-reclaim-std",
        "H2O: its deviation between runs; the oracle is a Poisson law's",
        Sampled("0.005"),
        rare_deviation(_shape("h2o"), _shape_law("h2o"), BLOCKS),
        poisson_deviation(_shape_law("h2o"), BLOCKS),
    ),
    Figure(
        "shapes-h2o-near-zero",
        "H2O: physical reclaim, B = 16 (read as below .005)",
        Below("almost nothing", 0.005),
        _shape("h2o"),
        _shape_law("h2o"),
    ),
    Figure(
        "shapes-h2o-reclaim-b4",
        "H2O: physical reclaim, B = 4",
        Sampled("0.14"),
        _shape("h2o", block_size=4),
        _shape_law("h2o", block_size=4),
    ),
    _h2o("reclaim-b64", Sampled("0.00"), 64),
)

SHAPE_FIGURES = (
    Figure(
        "shapes-retained",
        "Retained ratio that is farthest from one half, over the four shapes, B = 16 (read as within .01)",
        Near("matched 50 % retained", HALF, 0.01),
        farthest(HALF, [_shape(policy, "retained") for policy in SHAPES]),
    ),
    *_STREAMING,
    *_SNAPKV,
    *_H2O,
    Figure(
        "shapes-random-reclaim",
        "Random: physical reclaim, B = 16",
        Sampled("0.000"),
        _shape("random"),
        _shape_law("random"),
    ),
)
