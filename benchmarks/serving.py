"""The simulator on the Azure conversation trace, millions of requests, and sweeps on threads and on Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import polars as pl

from benchmarks.table import Row
from benchmarks.timing import PAIRS, estimate, in_turn
from kvreclaim.results import ResultsFolder
from kvreclaim.scheduling import SchedulerSettings
from kvreclaim.serving.giveback import closed_form
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.outcome import Simulation
from kvreclaim.serving.simulate import simulate
from kvreclaim.serving.steptime import StepTime
from kvreclaim.serving.sweep import Grid, Run, in_threads, read_grid, sweep
from kvreclaim.serving.trace import Trace
from kvreclaim.serving.traces import read_trace

EXAMPLE = Path(__file__).parents[1] / "examples" / "traces" / "azure-conv-1000.csv"
WHOLE = "KVRECLAIM_AZURE_CONV"  # where the whole trace lies; else its first 1,000 requests, 20 times over
DATE = "2023-11-16"  # as of `vidur_run`
STEP = StepTime(0.006, 2e-5, 1e-7, 9e-5)
ROOMY, TIGHT = 27_000, 1_200
LONG, WEEK = 22_000_000, 44_000_000
VIDUR = "KVRECLAIM_VIDUR"  # a Python that has Vidur 0.0.26, to show the ratio beside
_MAKE = """
import polars as pl
from kvreclaim.serving.arrivals import Lengths, poisson
trace = poisson({count}, 40.0, Lengths(1020, 2735), Lengths(129, 424), seed=1)
table = pl.DataFrame(dict(arrival=trace.arrival, prompt=trace.prompt, output=trace.output))
table.write_parquet({file!r})
"""
_STREAM = """
from pathlib import Path
from kvreclaim.serving.scenario import Scenario
done = Scenario(
    trace={file!r}, blocks=40_000, max_num_seqs=512, step_time=(0.006, 2e-6, 1e-8, 5e-6)
).run(interval=3600.0)
assert done.totals.served == {count} and done.by_request is None
status = Path("/proc/self/status").read_text()
peak = status.split("VmHWM:")[1].split()[0]  # a process's own: ru_maxrss begins with its parent's
print(int(peak) / 2**20, done.simulate_seconds)
"""


def run(quick: bool) -> Iterator[Row]:
    """Yield the rows; ``quick`` takes few requests and cells."""
    trace = _trace()
    trace = trace.head(2000) if quick else trace
    rounds = 3 if quick else PAIRS
    yield from _speed(trace, rounds)
    yield from _beside_vidur(trace, 1 if quick else 3)
    for count in (LONG, WEEK):
        yield from _streamed(count // 20 if quick else count)
    yield from _sweeps(20 if quick else 1000, 1 if quick else 3)


def _trace() -> Trace:
    if os.environ.get(WHOLE):
        return read_trace(os.environ[WHOLE])
    part = read_trace(EXAMPLE)
    shift = np.repeat(np.arange(20) * (part.span + 1), part.requests)
    columns = (np.tile(column, 20) for column in (part.arrival, part.prompt, part.output))
    arrival, prompt, output = columns
    return Trace(arrival + shift, prompt, output, "azure-conv, 20 times its first 1,000")


def _speed(trace: Trace, rounds: int) -> Iterator[Row]:
    def roomy() -> Simulation:
        return simulate(trace, SchedulerSettings(ROOMY, 16), STEP)

    def tight() -> Simulation:
        return simulate(trace, SchedulerSettings(TIGHT, 16), STEP)

    def packed() -> Simulation:
        return simulate(trace, SchedulerSettings(ROOMY, 16), STEP, closed_form("per-head", 0.5, "pack"))

    ample, scarce, halved = roomy(), tight(), packed()
    assert not ample.pool_binding
    assert scarce.count(places.PREEMPTIONS) > 0
    seconds = in_turn([roomy, tight, packed], rounds)
    for name, done, taken, target in (
        ("no preemption", ample, seconds[0], 20),
        ("with preemption", scarce, seconds[1], 3),
        ("no preemption, half packed after each prefill", halved, seconds[2], None),
    ):
        steps = done.count(places.STEPS)
        what = f"{name}, {trace.requests:,} requests, {steps:,} steps: million steps a second"
        yield Row("simulate", what, "M/s", estimate(steps / taken / 1e6), at_least=target)


def _beside_vidur(trace: Trace, rounds: int) -> Iterator[Row]:
    """Yield how many times as fast as Vidur both paths are, where a Python with Vidur is named."""
    if not os.environ.get(VIDUR):
        return
    with TemporaryDirectory() as name:
        file = Path(name) / "trace.csv"
        names = ("Time", "PromptTokenCount", "CompletionTokenCount")
        columns = dict(zip(names, (trace.arrival, trace.prompt, trace.output), strict=True))
        pl.DataFrame(columns).with_columns(Date=pl.lit(DATE)).write_csv(file)
        theirs, ours, exact = [], [], []
        for _ in range(rounds):
            theirs.append(_vidur(file))
            ours.append(_seconds(trace, aggregate=True))
            exact.append(_seconds(trace, aggregate=False))
    taken = np.array([found["seconds"] for found in theirs])
    here = simulate(trace, SchedulerSettings(ROOMY, 16), STEP).totals.latency.mean
    told = f"{theirs[0]['steps']:,.0f} steps, mean latency {theirs[0]['latency']:.2f} s, here {here:.2f} s"
    what = f"Vidur 0.0.26 on the same, {told}: time"
    yield Row("simulate", what, "s", estimate(taken))
    yield Row("simulate", "no preemption, times as fast as Vidur", "x", estimate(taken / ours))
    yield Row("simulate", "the same, every request of every step", "x", estimate(taken / exact))


def _vidur(file: Path) -> dict[str, float]:
    constants = map(str, STEP.constants)
    script = Path(__file__).with_name("vidur_run.py")
    answer = _python(os.environ[VIDUR], script, file, ROOMY, *constants)
    found: dict[str, float] = json.loads(answer.splitlines()[-1])
    return found


def _seconds(trace: Trace, *, aggregate: bool) -> float:
    begun = perf_counter()
    simulate(trace, SchedulerSettings(ROOMY, 16), STEP, aggregate=aggregate)
    return perf_counter() - begun


def _streamed(count: int) -> Iterator[Row]:
    """Yield what a trace that is not held takes: read twice, and simulated in windows."""
    with TemporaryDirectory() as name:
        file = str(Path(name) / "trace.parquet")
        _python(sys.executable, "-c", _MAKE.format(count=count, file=file))
        begun = perf_counter()
        answer = _python(sys.executable, "-c", _STREAM.format(count=count, file=file))
        whole = perf_counter() - begun
    gib, seconds = map(float, answer.split())
    what = f"{count:,} requests from Parquet"
    yield Row("simulate", f"{what}: peak memory of the process", "GiB", estimate([gib]), below=1)
    yield Row("simulate", f"{what}: time of the process", "s", estimate([whole]))
    yield Row("simulate", f"{what}: simulating", "s", estimate([seconds]))


def _python(python: str, *arguments: object) -> str:
    return subprocess.run(  # noqa: S603  # our own
        [python, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _sweeps(cells: int, rounds: int) -> Iterator[Row]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        loads = ", ".join(f"{1 + place / cells:.4f}" for place in range(cells // 2))
        (folder / "g.toml").write_text(
            f'[fixed]\ntrace = "{EXAMPLE}"\nstep_time = [{", ".join(map(str, STEP.constants))}]\n'
            f"[grid]\nblocks = [700, 1200]\nload = [{loads}]\n"
        )
        grid = read_grid(folder / "g.toml")
        runs = [in_threads(1), in_threads(2)]
        taken = np.array([[_time(grid, folder, run) for run in runs] for _ in range(rounds)])
        what = f"{len(grid.cells):,} configurations: 2 threads, times as fast as 1"
        yield Row("sweep", what, "x", estimate(taken[:, 0] / taken[:, 1]), at_least=1.7)
        yield Row("sweep", "the same, 1 thread: time", "s", estimate(taken[:, 0]))
        yield from _ray(grid, folder, float(np.median(taken[:, 0])))


def _ray(grid: Grid, folder: Path, alone: float) -> Iterator[Row]:
    try:
        from kvreclaim.serving.ray_cluster import on_ray

        run = on_ray("local")
    except ModuleNotFoundError:
        return
    taken = _time(grid, folder, run)
    processors = os.cpu_count() or 1
    overhead = (taken - alone / processors) / len(grid.cells)
    yield Row("sweep", "Ray's overhead a cell", "s", estimate([overhead]), below=0.01)


def _time(grid: Grid, folder: Path, run: Run) -> float:
    with TemporaryDirectory(dir=folder) as out:
        begun = perf_counter()
        sweep(grid, ResultsFolder(out), run, lambda _: None)
        return perf_counter() - begun
