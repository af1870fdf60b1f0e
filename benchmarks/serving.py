"""The simulator on the Azure conversation trace, millions of requests, and sweeps on threads and on Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from benchmarks.table import Row
from benchmarks.timing import PAIRS, estimate, in_turn
from kvreclaim.results import ResultsFolder
from kvreclaim.scheduling import SchedulerSettings
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.outcome import Simulation
from kvreclaim.serving.simulate import simulate
from kvreclaim.serving.steptime import StepTime
from kvreclaim.serving.sweep import Grid, Run, in_threads, read_grid, sweep
from kvreclaim.serving.trace import Trace
from kvreclaim.serving.traces import read_trace

EXAMPLE = Path(__file__).parents[1] / "examples" / "traces" / "azure-conv-1000.csv"
WHOLE = "KVRECLAIM_AZURE_CONV"  # where the whole trace lies; else its first 1,000 requests, 20 times over
STEP = StepTime(0.006, 2e-5, 1e-7, 9e-5)
ROOMY, TIGHT = 27_000, 1_200
MILLIONS = 5_000_000
_MEMORY = """
import resource
from kvreclaim.scheduling import SchedulerSettings
from kvreclaim.serving.arrivals import Lengths, poisson
from kvreclaim.serving.simulate import simulate
from kvreclaim.serving.steptime import StepTime
trace = poisson({count}, 20.0, Lengths(200, 600), Lengths(40, 100))
done = simulate(trace, SchedulerSettings(50_000, 16), StepTime(0.006, 2e-5, 1e-7, 2e-5))
assert done.totals.served == {count}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, done.simulate_seconds)
"""


def run(quick: bool) -> Iterator[Row]:
    """Yield the rows; ``quick`` takes few requests and cells."""
    trace = _trace()
    trace = trace.head(2000) if quick else trace
    rounds = 3 if quick else PAIRS
    yield from _speed(trace, rounds)
    yield from _memory(MILLIONS // 100 if quick else MILLIONS)
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

    ample, scarce = roomy(), tight()
    assert not ample.pool_binding
    assert scarce.count(places.PREEMPTIONS) > 0
    seconds = in_turn([roomy, tight], rounds)
    for name, done, taken, target in (
        ("no preemption", ample, seconds[0], 20),
        ("with preemption", scarce, seconds[1], 3),
    ):
        steps = done.count(places.STEPS)
        what = f"{name}, {trace.requests:,} requests, {steps:,} steps: million steps a second"
        yield Row("simulate", what, "M/s", estimate(steps / taken / 1e6), at_least=target)


def _memory(count: int) -> Iterator[Row]:
    answer = subprocess.run(  # noqa: S603  # our own
        [sys.executable, "-c", _MEMORY.format(count=count)],  # our own
        check=True,
        capture_output=True,
        text=True,
    )
    gib, seconds = map(float, answer.stdout.split())
    yield Row("simulate", f"{count:,} requests: peak memory of the process", "GiB", estimate([gib]), below=1)
    yield Row("simulate", f"{count:,} requests: time", "s", estimate([seconds]))


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
