"""The choice among measured candidates: dominance by brute force, what is told apart, what is asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreclaim import InputError
from kvreclaim.advise.choose import Option, choose, compare, pareto_set


def option(name, losses, reclaim=0.5, moved=0.0, evicts=True):
    return Option(name, tuple(losses), reclaim, moved, evicts)


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=8))
def test_the_pareto_set_is_what_no_other_beats(merits):
    options = [
        option(str(i), [loss], reclaim / 4, moved / 4) for i, (loss, reclaim, moved) in enumerate(merits)
    ]
    expected = set()
    for i, (loss, reclaim, moved) in enumerate(merits):
        beaten = any(
            l2 <= loss and r2 >= reclaim and m2 <= moved and (l2, r2, m2) != (loss, reclaim, moved)
            for l2, r2, m2 in merits
        )
        if not beaten:
            expected.add(str(i))
    assert pareto_set(options) == expected
    assert pareto_set([*options, option("fp8", [-1.0], 1.0, evicts=False)]) == expected


def test_the_least_loss_that_is_told_apart():
    options = [
        option("a", [1.0, 2, 3, 4, 5, 6], moved=0.02),
        option("b", [2.0, 3, 4, 5, 6, 7]),
        option("c", [0.0] * 6, 0.3),
    ]
    choice = choose(options, 0.5, 0.03)
    assert choice.recommended == "a"
    assert "told apart from all others on 6 prompts" in choice.reason
    assert [one.name for one in choice.comparisons] == ["b"]
    assert choice.comparisons[0].told_apart
    assert choose(options, 0.5, 0.0).recommended == "b"


def test_of_those_not_told_apart_the_one_that_copies_least():
    options = [
        option("a", [1.0, 5, 1, 5, 1, 5], moved=0.02),
        option("b", [5.0, 1.1, 5, 1.1, 5, 1.1]),
        option("c", [9.0] * 6),
    ]
    choice = choose(options, 0.5, 0.03)
    assert choice.recommended == "b"
    assert "not told apart on 6 prompts from a" in choice.reason
    near = choose([options[0], option("b", [5.0, 1.1, 5, 1.1, 5, 1.1], moved=0.03)], 0.5, 0.03)
    assert near.recommended == "a"
    assert "none dominates" in near.reason


def test_a_format_is_named_and_not_recommended():
    options = [option("a", [3.0, 4, 5] * 2), option("fp8", [0.1, 0.2, 0.1] * 2, evicts=False)]
    choice = choose(options, 0.5, 0.0)
    assert choice.recommended == "a"
    assert choice.reason.endswith("; fp8 loses less: where the runtime has it, take it first")
    both = choose([*options, option("int8", [0.1, 0.2, 0.1] * 2, evicts=False)], 0.5, 0.0, "needle")
    assert "only one that fits; fp8 and int8 lose less: where" in both.reason


def test_the_only_one_that_fits_is_told_apart_from_none():
    options = [option("a", [3.0, 4, 5] * 2), option("b", [1.0] * 6, 0.3), option("c", [2.0] * 6, moved=0.2)]
    reason = choose(options, 0.5, 0.03).reason
    assert reason.endswith(
        "no other candidate frees as much within the copy budget: it is the only one that fits"
    )
    assert "told apart" not in reason


def test_one_prompt_is_one():
    options = [option("a", [1.0]), option("b", [2.0])]
    assert "on 1 prompt none" in choose(options, 0.5, 0.0).reason
    assert "on 1 needle none" in choose(options, 0.5, 0.0, "needle").reason


def test_nothing_that_does_what_is_asked():
    options = [option("a", [1.0, 2.0], 0.5, 0.1), option("b", [1.0, 2.0], 0.1)]
    assert choose(options, 0.5, 0.03).recommended is None
    assert "copies at least 10.0% of the pairs" in choose(options, 0.5, 0.03).reason
    assert "a frees most, 0.500" in choose(options, 0.6, 0.03).reason


@pytest.mark.parametrize("prompts", range(1, 6))
def test_a_few_prompts_tell_nothing_apart(prompts):
    options = [option("a", [9.0] * prompts), option("b", [1.0] * prompts, moved=0.02)]
    assert not compare(*options).told_apart
    assert "it takes 6 to tell candidates apart" in choose(options, 0.5, 0.03).reason


def test_candidates_of_one_distribution_are_rarely_told_apart():
    draw = np.random.default_rng(0)
    pairs = [draw.normal(size=(2, 8)) for _ in range(400)]
    apart = sum(compare(option("a", one), option("b", other)).told_apart for one, other in pairs)
    assert apart <= 0.05 * 400 + 3 * (0.05 * 0.95 * 400) ** 0.5


def test_equals_dominate_nothing():
    equal = [option(name, [1.0] * 6) for name in "ab"]
    assert "none dominates: as much lost on 6 prompts by b" in choose(equal, 0.5, 0.0).reason


def test_a_paired_bootstrap_goes_by_prompt():
    """Prompts differ by 10, candidates by .1 on each: pairs tell them apart, their means never would."""
    base = np.arange(8) * 10.0
    found = compare(option("a", base + 0.1), option("b", base))
    assert found.told_apart
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))


def test_losses_of_different_prompts_are_refused():
    with pytest.raises(InputError, match="different prompts"):
        choose([option("a", [1.0]), option("b", [1.0, 2.0])], 0.5, 0.0)
