"""The rule by which a printed figure is judged."""

import json

import pytest

from kvreclaim.study import compaction
from kvreclaim.study.measures import measure
from kvreclaim.study.published import COMPATIBLE, EXACT, NOT_REPRODUCED, WITHIN
from kvreclaim.study.published.claims import (
    Above,
    Below,
    Claim,
    Estimate,
    Exact,
    HeavyTailed,
    HeavyTailedAbove,
    Near,
    Sampled,
    half_digit,
    number,
    unit_of,
)
from kvreclaim.study.reproduce import reproduce
from kvreclaim.study.seeds import Seeds


def estimate(value: float, spread: float = 0.0, n: int = 30) -> Estimate:
    return Estimate(value, spread, n, spread)


def test_printed_digits() -> None:
    assert (number("1,649"), half_digit("1,649"), unit_of("1,649")) == (1649, 0.5, 1)
    assert (number("0.0015 %"), half_digit("0.0015 %"), unit_of("0.0015 %")) == (0.0015, 0.00005, 100)


@pytest.mark.parametrize(
    ("claim", "reproduced", "oracle", "status"),
    [
        (Exact("0.47"), estimate(0.474), None, EXACT),
        (Exact("0.47"), estimate(0.476), None, NOT_REPRODUCED),
        (Exact("no copy", 0.0), estimate(0.0), None, EXACT),
        (Exact("no copy", 0.0), estimate(0.1), None, NOT_REPRODUCED),
        # half a digit .005, and 3 * .04 * sqrt(1/30 + 1/30) = .031
        (Sampled("0.29"), estimate(0.325, 0.04), None, WITHIN),
        (Sampled("0.29"), estimate(0.327, 0.04), None, NOT_REPRODUCED),
        (Sampled("0.29"), estimate(0.327, 0.04, 10), None, WITHIN),
        # 3 * 4.45 / sqrt(30) = 2.44 about the law
        (HeavyTailed("6.65"), estimate(5.0, 4.0), estimate(5.665, 4.45, 15), COMPATIBLE),
        (HeavyTailed("6.65"), estimate(6.65, 4.0), estimate(5.665, 4.45, 15), COMPATIBLE),
        (HeavyTailed("5.66"), estimate(5.0, 4.0), estimate(5.665, 4.45, 15), WITHIN),
        (HeavyTailed("8.15"), estimate(5.0, 4.0), estimate(5.665, 4.45, 15), NOT_REPRODUCED),
        (HeavyTailed("6.65"), estimate(8.2, 4.0), estimate(5.665, 4.45, 15), NOT_REPRODUCED),
        (HeavyTailedAbove("thousands", 1000), estimate(950, 700), estimate(1450, 1138, 15), WITHIN),
        (HeavyTailedAbove("thousands", 1000), estimate(700, 700), estimate(1450, 1138, 15), NOT_REPRODUCED),
        (HeavyTailedAbove("thousands", 1000), estimate(900, 700), estimate(900, 1138, 15), NOT_REPRODUCED),
        (Near("near", 0.47, 0.01), estimate(0.48 - 1e-12), None, WITHIN),
        (Near("near", 0.47, 0.01), estimate(0.481), None, NOT_REPRODUCED),
        (Above("thousands", 1000), estimate(1001), None, WITHIN),
        (Above("thousands", 1000), estimate(1000), None, NOT_REPRODUCED),
        (Below("nothing", 0.005), estimate(0.0049), None, WITHIN),
        (Below("nothing", 0.005), estimate(0.005), None, NOT_REPRODUCED),
    ],
)
def test_the_rule(claim: Claim, reproduced: Estimate, oracle: Estimate | None, status: str) -> None:
    assert claim.judge(reproduced, oracle).status == status


def test_a_quantity_that_no_run_defines_is_not_reproduced() -> None:
    # Both holes start at a block boundary, so that nothing moves and there is no ratio.
    seeds = Seeds(2, 6)
    assert measure(compaction.clustered_holes(seeds), 16).moved_tokens.tolist() == [0, 0]
    study = reproduce(seeds.count, seeds.base)
    figure = next(figure for figure in study.published if figure.id == "compaction-clustered-slots-per-move")
    assert (figure.status, figure.n) == (NOT_REPRODUCED, 0)
    assert figure in study.not_reproduced
    published = json.loads(study.files()["interactive_data.json"])["published"]
    assert (
        next(f for f in published if f["id"] == "compaction-clustered-slots-per-move")["reproduced"] is None
    )


def test_a_heavy_tailed_figure_needs_its_law() -> None:
    with pytest.raises(ValueError, match="law"):
        HeavyTailed("6.65").judge(estimate(5.0), None)
