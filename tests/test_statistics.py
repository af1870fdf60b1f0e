"""Intervals and the isotonic fit against brute force, published figures and simulated coverage."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreclaim.errors import InputError
from kvreclaim.statistics import Interval, bootstrap_interval, isotonic, sign_flip_p, wilson_interval

numbers = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3))


def closest_rising(values, weights):
    """The isotonic fit by its max-min formula: at i, over starts a <= i and ends b >= i of weighted means."""
    n = len(values)
    return [
        max(
            min(np.average(values[a : b + 1], weights=weights[a : b + 1]) for b in range(i, n))
            for a in range(i + 1)
        )
        for i in range(n)
    ]


@given(st.lists(st.tuples(numbers, st.floats(0.1, 10)), min_size=1, max_size=9))
def test_isotonic_is_the_closest_rising_sequence(pairs):
    values, weights = (list(column) for column in zip(*pairs, strict=True))
    assert isotonic(values, weights) == pytest.approx(closest_rising(values, weights), abs=1e-9)


@given(st.lists(numbers, min_size=1, max_size=30))
def test_isotonic_rises_keeps_the_mean_and_what_rises_already(values):
    fit = isotonic(values)
    assert (np.diff(fit) >= 0).all()
    assert fit.mean() == pytest.approx(np.mean(values), abs=1e-9)
    assert isotonic(sorted(values)).tolist() == sorted(values)  # to the last bit


def test_isotonic_by_hand():
    assert isotonic([1, 3, 2, 4]).tolist() == [1, 2.5, 2.5, 4]
    assert isotonic([3, 2, 1]).tolist() == [2, 2, 2]
    assert isotonic([1, 3, 0], [1, 1, 3]).tolist() == pytest.approx([0.8, 0.8, 0.8])


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # Newcombe (1998), Statistics in Medicine 17:857, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 1 - 0.1170, 1.0),
    ],
)
def test_wilson_as_published(successes, trials, low, high):
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=6e-5)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_solves_its_own_equation(case):
    successes, trials = case
    share, z = successes / trials, 1.959963984540054
    for end in wilson_interval(successes, trials):
        assert (share - end) ** 2 == pytest.approx(z * z * end * (1 - end) / trials, abs=1e-12)


def test_wilson_mirrors_and_narrows():
    low, high = wilson_interval(7, 50)
    assert wilson_interval(43, 50) == pytest.approx((1 - high, 1 - low))
    assert wilson_interval(70, 500).low > low
    assert wilson_interval(7, 50, confidence=0.5).low > low


@given(st.lists(numbers, min_size=1, max_size=12))
def test_bootstrap_lies_within_the_values_and_around_their_median(values):
    low, high = bootstrap_interval(values)
    assert min(values) <= low <= high <= max(values)
    assert low <= np.median(values) <= high
    assert (low, high) == bootstrap_interval(values)


def test_bootstrap_of_one_value_is_that_value():
    assert bootstrap_interval([0.25]) == Interval(0.25, 0.25)


def test_bootstrap_of_a_mean_agrees_with_the_normal_interval():
    values = np.random.default_rng(1).normal(size=400)
    half = 1.96 * values.std() / 20
    expected = (values.mean() - half, values.mean() + half)
    assert bootstrap_interval(values, np.mean) == pytest.approx(expected, abs=0.01)


def test_bootstrap_in_parts_draws_what_it_draws_at_once(monkeypatch):
    values = np.arange(40.0)
    whole = bootstrap_interval(values)
    monkeypatch.setattr("kvreclaim.statistics.RESAMPLED_VALUES", 40_000)
    assert bootstrap_interval(values) == whole


def test_overlap():
    assert Interval(0, 1).overlaps(Interval(1, 2))
    assert not Interval(0, 1).overlaps(Interval(1.1, 2))
    assert Interval(0, 3).overlaps(Interval(1, 2)) and Interval(1, 2).overlaps(Interval(0, 3))


@pytest.mark.parametrize(
    "call",
    [
        lambda: wilson_interval(3, 2),
        lambda: wilson_interval(0, 0),
        lambda: wilson_interval(-1, 2),
        lambda: wilson_interval(1, 2, confidence=1.0),
        lambda: bootstrap_interval([]),
        lambda: bootstrap_interval([1.0, math.nan]),
        lambda: bootstrap_interval([[1.0], [1.0, 2.0]]),
        lambda: bootstrap_interval([1.0], confidence=0),
        lambda: isotonic([]),
        lambda: isotonic([math.inf]),
        lambda: isotonic([1, 2], [1]),
        lambda: isotonic([1, 2], [1, 0]),
    ],
)
def test_bad_input_is_one_line(call):
    with pytest.raises(InputError) as refused:
        call()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_flipping_signs_is_counted_by_hand(count: int) -> None:
    values = np.random.default_rng(count).normal(0.3, 1, count)
    ways = list(itertools.product((-1, 1), repeat=count))
    extreme = [abs(np.dot(way, values)) >= abs(values.sum()) - 1e-9 for way in ways]
    assert sign_flip_p(values) == pytest.approx(np.mean(extreme))


def test_many_pairs_are_flipped_at_random() -> None:
    assert sign_flip_p(np.ones(40)) == pytest.approx(1e-4)
    assert sign_flip_p([1.0, -1.0] * 20) == 1.0
