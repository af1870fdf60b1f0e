"""The copy-cost model: recovered from synthetic copies, optimal by its certificate, and true to a report."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreclaim.cost import CopyCost, CopySample, fit_copy_cost, read_copy_cost
from kvreclaim.errors import InputError

GB = 1e9


def copies(cost, noise=0.0, seed=0):
    """Copies of several sizes in several numbers of runs, as a machine of this cost would do them."""
    generator = np.random.default_rng(seed)
    return [
        CopySample(size, runs, cost.seconds(size, runs) * math.exp(noise * generator.normal()))
        for size in (10_000, 1_000_000, 20_000_000)
        for runs in (1, 8, 64, 512)
    ]


def test_seconds_add_up():
    cost = CopyCost(fixed=1.0, per_run=0.5, per_byte=0.25)
    assert cost.seconds(8, 2) == 1 + 1 + 2
    assert cost.seconds(8, 2, copies=3) == 3 + 1 + 2
    assert cost.seconds(0, 0) == 0
    assert (cost.bandwidth, cost.even_run_bytes) == (4, 2)
    assert CopyCost(1.0, 1.0, 0.0).bandwidth is None
    assert CopyCost(1.0, 1.0, 0.0).even_run_bytes is None


def test_exact_copies_give_back_their_constants():
    cost = CopyCost(fixed=2e-5, per_run=3e-7, per_byte=1 / (12 * GB))
    fit = fit_copy_cost(copies(cost))
    found = (fit.cost.fixed, fit.cost.per_run, fit.cost.per_byte)
    assert found == pytest.approx((cost.fixed, cost.per_run, cost.per_byte), rel=1e-6)
    assert fit.median_error < 1e-9
    assert fit.bandwidth == pytest.approx((12 * GB, 12 * GB), rel=1e-6)


def test_the_intervals_of_noisy_copies_hold_the_constants():
    cost = CopyCost(fixed=2e-5, per_run=3e-7, per_byte=1 / (12 * GB))
    inside = np.zeros(3)
    for seed in range(40):
        fit = fit_copy_cost([sample for part in range(3) for sample in copies(cost, 0.1, 100 * seed + part)])
        for place, name in enumerate(("fixed", "per_run", "per_byte")):
            low, high = getattr(fit, name)
            inside[place] += low <= getattr(cost, name) <= high
        assert 0.02 < fit.median_error < 0.2
    assert (inside >= 32).all()  # of 40 at 95 %: the bootstrap of 36 samples is a little narrow


def test_a_constant_that_would_be_negative_is_zero():
    cost = CopyCost(fixed=0.0, per_run=1e-6, per_byte=1e-10)
    # One copy less than nothing is left over for a fixed cost.
    samples = [CopySample(one.moved_bytes, one.runs, one.seconds - 5e-7) for one in copies(cost)]
    fit = fit_copy_cost(samples)
    assert fit.cost.fixed == 0
    assert fit.fixed.low == 0


@given(
    st.lists(
        st.tuples(st.integers(1, 10**7), st.integers(1, 1000), st.floats(1e-6, 1.0)), min_size=6, max_size=12
    )
)
def test_no_other_constants_come_closer(rows):
    """The fit obeys the conditions of Karush, Kuhn and Tucker, which only the least sum of squares does."""
    try:
        fit = fit_copy_cost([CopySample(*row) for row in rows])
    except InputError:
        return
    constants = np.array([fit.cost.fixed, fit.cost.per_run, fit.cost.per_byte])
    terms = np.array([(1.0, runs, size) for size, runs, _ in rows]) / np.array([[row[2]] for row in rows])
    slope = terms.T @ (terms @ constants - 1) / np.linalg.norm(terms, axis=0)
    assert (slope > -1e-5).all()
    assert np.abs(slope[constants > 0]).max(initial=0) < 1e-5


def test_a_report_of_few_and_many_copies():
    """vLLM issue 35990: from 3 copies a layer at 40 to 43 GB/s follow 193 copies at 1 to 3 GB/s.

    Both moved the same bytes over PCIe 5.0 x16, 63 GB/s. By bytes alone the two would take equally long.
    """
    size = 64 << 20
    for rate in (40 * GB, 43 * GB):
        per_byte = 1 / (63 * GB)
        cost = CopyCost(0.0, (size / rate - size * per_byte) / 3, per_byte)
        assert size / cost.seconds(size, 3) == pytest.approx(rate)
        assert 1 * GB < size / cost.seconds(size, 193) < 3 * GB


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([(1000, 1, 1.0)] * 5, "5 copies can't be fitted: pass at least 6"),
        ([(1000, runs, 1.0) for runs in range(1, 8)], "can't tell bytes from runs"),
        ([(1000 * runs, runs, 1.0) for runs in range(1, 8)], "can't tell bytes from runs"),
    ],
)
def test_copies_that_say_too_little_are_refused(samples, words):
    with pytest.raises(InputError, match=words):
        fit_copy_cost([CopySample(*sample) for sample in samples])


@pytest.mark.parametrize(
    "fields", [(0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0), (1, 1, math.nan), (1, 1, math.inf)]
)
def test_copies_of_nothing_are_refused(fields):
    with pytest.raises(InputError):
        CopySample(*fields)


@pytest.mark.parametrize("fields", [(-1.0, 0.0, 0.0), (0.0, math.nan, 0.0), (0.0, 0.0, math.inf)])
def test_costs_are_at_least_nothing(fields):
    with pytest.raises(InputError, match="pass seconds, at least 0"):
        CopyCost(*fields)


def test_bytes_need_a_run():
    with pytest.raises(InputError, match="5 bytes in no run"):
        CopyCost(0.0, 0.0, 1.0).seconds(5, 0)


def calibrated(**constants):
    """A way to copy as ``calibrate copy --json`` gives it."""
    known = {"fixed_seconds": 2e-5, "seconds_per_run": 3e-7, "bytes_per_second": 4e9, **constants}
    found = {name: {"value": value, "low": None, "high": None} for name, value in known.items()}
    return {"device": "cpu", "way": "pack", **found}


def test_a_calibrated_cost_is_read_from_its_file(tmp_path):
    file = tmp_path / "copies.json"
    file.write_text(json.dumps([{**calibrated(fixed_seconds=9), "way": "gather"}, calibrated()]))
    assert read_copy_cost(file, "cpu", "pack") == CopyCost(2e-5, 3e-7, 0.25e-9)
    file.write_text(json.dumps([calibrated(bytes_per_second=None)]))
    assert read_copy_cost(file, "cpu", "pack").per_byte == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "holds no cost of copies: write it with kvreclaim calibrate copy --json"),
        ("[1]", "holds no cost of copies"),
        (json.dumps([calibrated(fixed_seconds=None)]), "holds no cost of copies"),
        (json.dumps([calibrated(fixed_seconds=-1)]), "holds no cost of copies"),
        ("[]", "has no cost of way pack on cpu: write it with kvreclaim calibrate copy --device cpu --way"),
        (json.dumps([calibrated(), calibrated()]), "has no cost of way pack"),
    ],
)
def test_files_that_hold_no_cost(tmp_path, text, says):
    file = tmp_path / "copies.json"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        read_copy_cost(file, "cpu", "pack")
    with pytest.raises(InputError, match="holds no cost of copies"):
        read_copy_cost(tmp_path / "nowhere", "cpu", "pack")
