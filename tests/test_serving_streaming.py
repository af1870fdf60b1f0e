"""Traces in windows: the same numbers as at once, in bounded memory."""

import json

import numpy as np
import pytest
from command_line import call
from hypothesis import given, settings
from hypothesis import strategies as st
from test_serving_scheduler import STEP, limits, traces

from kvreclaim.errors import InputError
from kvreclaim.serving.arrivals import Arrivals, Lengths, poisson
from kvreclaim.serving.digest import LEAST, Digest
from kvreclaim.serving.eviction import Eviction, rkv
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.memory import Memory
from kvreclaim.serving.simulate import simulate
from kvreclaim.serving.traces import open_trace, read_trace

WINDOWS = st.integers(1, 9)
HALF = Eviction("free", lambda length: length // 2, lambda length, left, size: (length - left) // (2 * size))


def same(one, other):
    for name in "scheduled", "first_token", "finish", "preemptions", "status":
        np.testing.assert_array_equal(getattr(one.each, name), getattr(other.each, name))
    np.testing.assert_array_equal(one.samples, other.samples)
    # Which path ran may differ, and places in the arrays do.
    apart = {places.SHORT_STEPS, places.ARRIVED, places.HEAD, places.TAIL}
    counted = [place for place in range(places.COUNTS) if place not in apart]
    np.testing.assert_array_equal(one.counts[counted], other.counts[counted])
    np.testing.assert_array_equal(one.clock, other.clock)
    summaries = [{**made.summary(), "simulate_seconds": None} for made in (one, other)]
    assert summaries[0] == summaries[1]
    assert one.totals.first_refused == other.totals.first_refused


@given(traces(), limits(), WINDOWS, st.booleans())
@settings(max_examples=300)
def test_windows_of_any_size_give_the_same_bits(trace, setting, window, aggregate):
    made = [
        simulate(trace, setting, STEP, interval=0.1, aggregate=aggregate, window=size)
        for size in (window, trace.requests)
    ]
    same(*made)


@given(traces(), limits(), WINDOWS, st.sampled_from([HALF, Eviction("reuse", lambda n: n // 3), rkv(9, 4)]))
def test_windows_with_evictions(trace, setting, window, eviction):
    made = [
        simulate(trace, setting, STEP, eviction, interval=0.1, window=size)
        for size in (window, trace.requests)
    ]
    same(*made)


@given(
    traces(),
    limits(),
    WINDOWS,
    st.sampled_from([Memory(page_blocks=3), Memory(False, 2, (None, 5, None)), Memory(False, 0, (3, None))]),
    st.sampled_from([None, HALF]),
)
def test_windows_with_pages_and_with_groups(trace, setting, window, memory, eviction):
    made = [
        simulate(trace, setting, STEP, eviction, memory=memory, interval=0.1, window=size)
        for size in (window, trace.requests)
    ]
    assert made[0].peak_pages == made[1].peak_pages
    same(*made)


def test_the_kernel_sees_who_waits_or_runs_and_one_part_of_the_trace(monkeypatch):
    from kvreclaim.serving import kernel

    seen, run = [], kernel.run

    def recorded(requests, *others):
        seen.append(requests.arrival.size)
        return run(requests, *others)

    monkeypatch.setattr(kernel, "run", recorded)
    trace = poisson(5000, 50.0, Lengths(40, 80), Lengths(10, 20), seed=2)
    made = simulate(trace, _roomy(), STEP, window=100)
    assert made.totals.served == 5000
    at_once = made.count(places.PEAK_WAITING) + made.count(places.PEAK_RUNNING)
    assert max(seen) <= 100 + at_once < 1000


def _roomy():
    from kvreclaim.scheduling import SchedulerSettings

    return SchedulerSettings(500, 16)


# Files


@pytest.fixture(params=["csv", "parquet"])
def stored(request, tmp_path):
    import polars as pl

    trace = poisson(3000, 40.0, Lengths(40, 90), Lengths(10, 25), burstiness=0.5, seed=5)
    table = pl.DataFrame({"arrival": trace.arrival, "prompt": trace.prompt, "output": trace.output})
    file = tmp_path / f"t.{request.param}"
    table.write_csv(file) if request.param == "csv" else table.write_parquet(file)
    return file


@pytest.mark.parametrize("options", [{}, {"rate": 30.0, "burstiness": 0.3, "seed": 4}, {"requests": 700}])
def test_a_stored_trace_is_the_held_one(stored, options):
    held, kept = read_trace(stored, **options), open_trace(stored, **options, held=500)
    assert held.in_memory > kept.in_memory
    for name in "requests", "span", "longest", "notes", "name":
        assert getattr(kept, name) == getattr(held, name)
    assert kept.mean == pytest.approx(held.mean, rel=1e-12)
    for _ in range(2):  # it can be read again
        parts = list(kept.faster(3.0).windows(100))
        assert max(part.requests for part in parts) <= 100
        for name in "arrival", "prompt", "output":
            whole = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_array_equal(whole, getattr(held.faster(3.0), name))
    sums = [simulate(trace, _roomy(), STEP, window=100).summary() for trace in (held, kept)]
    assert {**sums[0], "simulate_seconds": 0} == {**sums[1], "simulate_seconds": 0}


def test_a_stored_trace_is_answered_in_sum(stored):
    made = simulate(open_trace(stored, held=500), _roomy(), STEP)
    with pytest.raises(InputError, match="not held in memory"):
        _ = made.each


def test_gaps_and_rows_left_out_are_noted_alike(tmp_path):
    rows = [
        "arrival,prompt,output",
        *(f"{time},5,5" for time in range(9)),
        "7300,5,0",
        "7300,5,5",
        "7301,5,5",
    ]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    held, kept = read_trace(tmp_path / "t.csv"), open_trace(tmp_path / "t.csv", held=3)
    assert held.notes == kept.notes
    assert kept.notes == (
        "1 requests without prompt or output left out, the first in line 11",
        "nothing arrives for 2.0 h after 8 s",
    )


def test_the_command_on_a_trace_too_long_to_hold(stored, tmp_path, monkeypatch):
    from kvreclaim.serving.traces import read

    common = ("simulate", stored, "--blocks", 400, "--step-time", "0.0123,3e-4,2e-6,9e-5", "--json", "-")
    held = json.loads(call(*common).out)
    monkeypatch.setattr(read.open_trace, "__kwdefaults__", {**read.open_trace.__kwdefaults__, "held": 1000})
    kept = call(*common, "--load", 1.0, "--requests", 10**6, "--out", tmp_path / "out")
    assert {**json.loads(kept.out), "simulate_seconds": 0} == {**held, "simulate_seconds": 0}
    assert "by request only" in " ".join(kept.err.split())
    assert not (tmp_path / "out" / "requests.parquet").exists()


def test_what_compiles_is_said_once():
    from numba import njit

    from kvreclaim.serving.kernel import compiling

    said, double = [], njit(lambda value: 2 * value)
    with compiling(lambda: said.append("compiling")):
        assert said == []
        double(1)
        double(1.0)
    assert said == ["compiling"]
    double(1j)
    with compiling(lambda: said.append("again")):
        double(2)  # compiled already
    assert said == ["compiling"]


# Percentiles


@given(
    st.lists(st.floats(0, 1e9) | st.floats(1e-12, 1e-6), min_size=1, max_size=200),
    st.integers(0, 300),
    st.integers(1, 50),
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
)
def test_percentiles_are_within_their_error_of_numpys(values, exact, batch, percents):
    digest = Digest(exact)
    for start in range(0, len(values), batch):
        digest.add(np.array(values[start : start + batch]))
    found, true = digest.percentiles(percents), np.percentile(values, percents)
    if len(values) <= exact:
        assert digest.error == 0
        np.testing.assert_array_equal(found, true)
    assert (np.abs(found - true) <= true * digest.error * (1 + 1e-6) + LEAST).all()
    assert digest.mean == pytest.approx(np.mean(values), rel=1e-12, abs=1e-300)
    assert digest.count == len(values)


def test_an_empty_digest_has_no_mean():
    empty = Digest()
    empty.add(np.empty(0))
    assert (empty.count, empty.mean, empty.some(50, 99)) == (0, None, [None, None])


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.sampled_from([0.3, 1.0, 2.5]))
def test_made_up_arrivals_do_not_depend_on_the_portions(portions, shape):
    whole = Arrivals(3.0, shape, np.random.default_rng(1)).next(sum(portions))
    parts = Arrivals(3.0, shape, np.random.default_rng(1))
    np.testing.assert_array_equal(np.concatenate([parts.next(count) for count in portions]), whole)
