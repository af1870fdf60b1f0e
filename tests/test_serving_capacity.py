"""The load that meets a target: against loads tried one by one, and the same from wherever it starts."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreclaim.serving import capacity as found_in
from kvreclaim.serving.capacity import ANY_LOAD, FOUND, HIGHEST, LOWEST, NO_LOAD, Target, capacity, search
from kvreclaim.serving.plan import blocks_at_end, plan
from kvreclaim.serving.scenario import Scenario

TRACE = str(Path(__file__).parents[1] / "examples" / "traces" / "azure-conv-1000.csv")
TIGHT = Scenario(trace=TRACE, gpu="rtx-4090", requests=300)
STEP = (0.012, 2e-5, 1e-7, 9e-5)


@given(st.floats(LOWEST + 1, HIGHEST - 1), st.integers(LOWEST + 1, HIGHEST - 1))
def test_the_border_is_found_to_a_percent_from_any_start(border, start):
    found = search(lambda exponent: exponent <= border, start)
    assert found.outcome == FOUND
    assert found.met <= border < found.missed
    assert 2.0**found.missed < 1.01 * 2.0**found.met


@given(st.integers(LOWEST, HIGHEST - 1), st.sampled_from([LOWEST - 1.0, HIGHEST + 1.0]))
def test_a_border_beyond_either_end(start, border):
    found = search(lambda exponent: exponent <= border, start)
    assert found.outcome == (NO_LOAD if border < 0 else ANY_LOAD)
    assert (found.met is None, found.missed is None) == (border < 0, border > 0)


@given(st.lists(st.booleans(), min_size=37, max_size=37), st.integers(LOWEST, HIGHEST - 1))
def test_without_an_order_it_is_met_where_it_is_found_and_missed_next_to_it(answers, start):
    def met(exponent):
        return answers[math.floor(exponent) - LOWEST]

    found = search(met, start)
    if found.outcome == FOUND:
        assert met(found.met)
        assert not met(found.missed)


@pytest.mark.parametrize("rate", [0.5, 2.0, 20.0, 100.0, 200.0, 5000.0])
@pytest.mark.parametrize("load", [1.0, 7.0])
def test_the_same_from_whatever_rate_and_load_it_starts(rate, load):
    first = capacity(replace(TIGHT, rate=1.0), Target(2.0))
    found = capacity(replace(TIGHT, rate=rate, load=load), Target(2.0))
    assert found.rate == pytest.approx(first.rate, rel=1e-9)
    assert found.load * rate == pytest.approx(first.load, rel=1e-9)


@pytest.mark.parametrize("start", [-9, 0, 9])
@pytest.mark.parametrize("changes", [{}, {"policy": "per-head"}, {"policy": "streaming-llm", "mode": "free"}])
def test_it_is_met_there_and_by_no_much_higher_load(changes, start):
    scenario, target = replace(TIGHT, step_time=STEP, **changes), Target(latency_p99=20.0)
    found = capacity(scenario, target, start)
    assert found.outcome == FOUND
    assert target.met(replace(scenario, load=found.load).run())
    assert not target.met(found.missed)
    assert found.missed.trace.span == pytest.approx(scenario.read().span / found.load, rel=0.01)
    for times in np.geomspace(1.1, 16, 25):  # who preempts whom moves the 3 slowest of 300 by some percent
        assert not target.met(replace(scenario, load=found.load * times).run())


def test_where_no_load_meets_it_the_lowest_is_shown():
    found = capacity(TIGHT, Target(1e-9))
    assert (found.outcome, found.load, found.rate, found.binds) == (NO_LOAD, None, None, "compute")
    alone = replace(TIGHT, load=1e-6).run().summary()["ttft_p99"]
    assert found.missed.summary()["ttft_p99"] == pytest.approx(alone)


def test_where_any_load_meets_it_nothing_binds():
    found = capacity(TIGHT, Target(1e9))
    assert (found.outcome, found.load, found.binds) == (ANY_LOAD, None, "nothing")


def test_all_at_once_has_no_load(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,50,5\n0,50,5\n")
    scenario = Scenario(trace=str(tmp_path / "t.csv"))
    assert capacity(scenario, Target(1e9)).outcome == ANY_LOAD
    assert capacity(scenario, Target(1e-9)).outcome == NO_LOAD


def test_a_refused_request_misses_every_target():
    scenario = replace(TIGHT, blocks=100)
    assert 0 < scenario.run().totals.refused < 300
    found = capacity(scenario, Target(1e9))
    assert (found.outcome, found.binds) == (NO_LOAD, "pool")


@pytest.mark.parametrize(
    ("changes", "binds"),
    [({}, "pool"), ({"gpu": "h200", "max_num_seqs": 2}, "max_num_seqs"), ({"gpu": "h200"}, "compute")],
)
def test_what_binds_is_what_would_have_to_be_larger(changes, binds):
    scenario = replace(TIGHT, **changes)
    found = capacity(scenario, Target(2.0))
    assert found.binds == binds
    larger = {"pool": {"blocks": 300_000}, "max_num_seqs": {"max_num_seqs": 300}}
    for name, change in larger.items():
        more = capacity(replace(scenario, **change), Target(2.0)).load
        assert (more > 1.01 * found.load) == (name == binds)


def test_from_which_load_on_requests_wait_for_blocks():
    for scenario in TIGHT, replace(TIGHT, blocks=1300):
        first = found_in.pool_binds_from(scenario)
        assert replace(scenario, load=first).run().pool_binding
        assert not replace(scenario, load=first / 1.01).run().pool_binding
    assert found_in.pool_binds_from(replace(TIGHT, blocks=300_000)) is None
    assert found_in.pool_binds_from(replace(TIGHT, blocks=100)) == 0


def test_blocks_of_a_mean_request_at_its_end(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,1000,101\n")
    scenario = Scenario(trace=str(tmp_path / "t.csv"))

    def ends(**changes):
        made = replace(scenario, **changes)
        return blocks_at_end(made, made.eviction())

    assert ends() == math.ceil(1100 / 16)
    packed = {mode: ends(policy="per-head", mode=mode) for mode in ("mask", "free", "pack", "reuse")}
    assert packed == {"mask": 69, "free": 69, "pack": math.ceil(600 / 16), "reuse": math.ceil(1000 / 16)}
    # 4 sinks and the last 496: of the 62 whole blocks 0 to 31 but the first are dead
    assert ends(policy="streaming-llm", mode="free") == 69 - 30
    decoding = {"evict_while_decoding": "full-buffer", "budget": 256, "buffer": 128}
    assert ends(**decoding) == math.ceil((256 + 100) / 16)
    # groups: 21 layers that see all, 21 that see 4,096; all 1,100 tokens
    assert ends(model="gemma-2-9b", hybrid=True) == 2 * 69


def test_rows_that_refuse_some_do_not_meet_the_target():
    rows = {variant.title: variant.to_dict() for variant in plan(replace(TIGHT, blocks=200), Target(60.0))}
    for row in rows.values():
        assert (row["outcome"] == NO_LOAD) == (row["refused"] > 0)
    assert rows["full cache"]["refused"] > 0
    assert rows["fp8"]["refused"] == 0
