"""Step times from runs: made-up runs whose constants are known, and the real ones where they are."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import call, refused

from kvreclaim.scheduling import SchedulerSettings
from kvreclaim.serving.arrivals import Lengths, poisson
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.simulate import simulate
from kvreclaim.serving.steptime import StepTime

RUNS = Path(__file__).parents[2] / "shared/data/vllm-runs"
TRUE = StepTime(9e-3, 6e-5, 2e-7, 7e-5)


def write_run(folder, blocks=400):
    """Write a run that the simulator made: 80 requests in a pool that binds."""
    trace = poisson(80, 8.0, Lengths(300, 900), Lengths(60, 160), seed=1)
    limits = SchedulerSettings(blocks - 1, 16, max_num_seqs=64)
    made = simulate(trace, limits, TRUE, interval=1.0)
    each, start = made.each, 1000.0
    lines = [
        {
            "queued_ts": start + trace.arrival[place],
            "input_toks": int(trace.prompt[place]),
            "output_toks": int(trace.output[place]),
            "first_token_ts": start + each.first_token[place],
            "last_token_ts": start + each.finish[place],
        }
        for place in range(trace.requests)
    ]
    engine = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    meta = {"engine_kwargs": engine, "kv_cache": {"num_gpu_blocks": blocks, "block_size": 16}}
    (folder / "a.requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "a.meta.json").write_text(json.dumps(meta))
    rows = [f"{row[places.S_TIME]},{int(row[places.S_RUNNING])}\n" for row in made.samples]
    (folder / "a.timeseries.csv").write_text("t,running\n" + "".join(rows))
    return str(folder / "a"), made


def test_constants_of_a_made_up_run_are_found_again(tmp_path):
    prefix, made = write_run(tmp_path)
    assert made.pool_binding
    found = json.loads(call("calibrate", "step", "--from-run", prefix, "--json", "-").out)
    assert found["fit_error"] < 0.02
    for name, tolerance in (("ttft_mean", 0.02), ("latency_p50", 0.02), ("latency_p99", 0.03)):
        near = pytest.approx(found[name]["real"], rel=tolerance, abs=found["fit_error"])
        assert found[name]["simulated"] == near, name
    assert abs(found["peak_running"]["simulated"] - found["peak_running"]["real"]) <= 2
    for name, true in zip(("base", "decode", "kv_token", "prefill_token"), TRUE.constants, strict=True):
        constant = found["constants"][name]
        if constant["identifiable"]:
            assert 0.7 * constant["low"] <= true <= 1.3 * constant["high"]


@pytest.mark.skipif(not RUNS.exists(), reason="the recorded runs are not on this machine")
@pytest.mark.parametrize("name", ["RTXPRO6000_Llama-3.1-8B", "RTX4090_Llama-3.1-8B"])
def test_real_runs_on_the_requests_that_were_not_fitted(name):
    answer = call("calibrate", "step", "--from-run", RUNS / name, "--fit-fraction", 0.5, "--json", "-")
    found = json.loads(answer.out)
    assert (found["fitted"], found["judged"]) == (150, 150)
    assert abs(found["peak_running"]["real"] - found["peak_running"]["simulated"]) <= 2
    for figure, tolerance in (("ttft_mean", 0.02), ("latency_p50", 0.02), ("latency_p99", 0.03)):
        assert found[figure]["simulated"] == pytest.approx(found[figure]["real"], rel=tolerance), figure
    assert found["running_mae"] < 2.5
    unbound = "names no pool size" in answer.err
    assert unbound == (found["blocks"] is None) == ("PRO" in name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "a.meta.json").unlink(), "a.meta.json"),
        (lambda folder: (folder / "a.meta.json").write_text("{}"), "engine"),
        (lambda folder: (folder / "a.timeseries.csv").write_text("t\n1\n"), "a.timeseries.csv"),
        (lambda folder: (folder / "a.requests.jsonl").write_text("{}\n"), "a.requests.jsonl"),
    ],
)
def test_runs_that_are_none(tmp_path, change, words):
    prefix, _ = write_run(tmp_path)
    change(tmp_path)
    refused(call("calibrate", "step", "--from-run", prefix), words)


@pytest.mark.parametrize("fraction", ["0", "1", "0.01", "nan"])
def test_fractions_that_leave_nothing(tmp_path, fraction):
    prefix, _ = write_run(tmp_path)
    refused(call("calibrate", "step", "--from-run", prefix, "--fit-fraction", fraction), "--fit-fraction")


def test_the_fit_is_a_step_time_for_simulate(tmp_path):
    names = ("base", "decode", "kv_token", "prefill_token")
    constants = {name: {"value": value} for name, value in zip(names, TRUE.constants, strict=True)}
    (tmp_path / "fit.json").write_text(json.dumps({"constants": constants}))
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,100,1\n")
    given = call("simulate", tmp_path / "t.csv", "--step-time", tmp_path / "fit.json", "--json", "-")
    expected = TRUE.seconds(0, 100, 100)
    assert json.loads(given.out)["ttft_mean"] == pytest.approx(expected, rel=1e-12)
    assert np.isfinite(expected)
