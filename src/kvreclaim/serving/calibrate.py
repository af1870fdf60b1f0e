"""The four constants of a step's time, fitted to a recorded run, and judged on requests that were not fitted.

Every fit simulates the whole run and compares, over the fitted requests, the seconds to the first token and
the seconds from there to the last: the two parts of a latency that a run measures apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.runs import Run
from kvreclaim.serving.search import Point, minimise
from kvreclaim.serving.simulate import simulate
from kvreclaim.serving.steptime import CONSTANTS, StepTime

# Half and twice the middle of what steps take on the GPUs of today, for base and decode, KV and prefill.
_MIDDLE = np.log([1e-2, 4e-5, 1.5e-7, 8e-5])
_STARTS = tuple(itertools.product((-math.log(2), math.log(2)), repeat=2))
_WALK = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, math.log(10))  # distances from the best constant, in its logarithm
_CHI_SQUARE = 3.841458820694124  # 95th percentile, one degree of freedom


@dataclass(frozen=True)
class Constant:
    """A fitted constant, and the range of those that fit about as well.

    `low` and `high` bound the 95 % profile interval (the other constants fitted anew at each value, errors
    taken as independent); None where a tenth or ten times the value still lies inside.
    """

    name: str
    value: float
    low: float | None
    high: float | None

    @property
    def identifiable(self) -> bool:
        """Whether the run bounds the constant on both sides."""
        return self.low is not None and self.high is not None


@dataclass(frozen=True)
class Judged:
    """A number of the run and of the simulation, over the requests that were not fitted."""

    real: float
    simulated: float


@dataclass(frozen=True)
class Calibration:
    """A fit and how it does on the other requests.

    Attributes
    ----------
    step_time
        The constants.
    constants
        The same with their intervals.
    error
        Root mean square of the fitted times' errors, in seconds.
    fitted, judged
        Requests.
    figures
        ``peak_running`` (as sampled), ``ttft_mean``, ``latency_p50``, ``latency_p99``.
    running_mae
        Mean absolute error of the running requests, sample by sample, from the first judged arrival on.
    """

    step_time: StepTime
    constants: tuple[Constant, ...]
    error: float
    fitted: int
    judged: int
    figures: dict[str, Judged]
    running_mae: float


def calibrate_step(run: Run, fit_fraction: float, advance: Callable[[], None] | None = None) -> Calibration:
    """Fit a step's time to the first part of a run's requests and judge it on the rest.

    Parameters
    ----------
    run
        The recorded run.
    fit_fraction
        Share of the requests that are fitted, the first to arrive.
    advance
        Called after each of `stages()`.

    Raises
    ------
    InputError
        If fewer than 8 requests would be fitted, or none judged.
    """
    fitted = round(run.trace.requests * fit_fraction) if 0 < fit_fraction < 1 else 0
    if not 8 <= fitted < run.trace.requests:
        raise InputError(
            f"--fit-fraction {fit_fraction} of {run.trace.requests} requests: pass a fraction that fits at "
            "least 8 and leaves one to judge"
        )
    loss = _Loss(run, fitted)
    done = advance or (lambda: None)
    best = _fit(loss, done)
    constants = _profiles(loss, best, done)
    judged = simulate(run.trace, run.settings, loss.step_time(best), interval=_interval(run))
    late = slice(fitted, None)
    real = _Times(run.first_token - run.trace.arrival, run.finish - run.trace.arrival)
    simulated = _Times(judged.each.first_token - run.trace.arrival, judged.each.finish - run.trace.arrival)
    since = run.trace.arrival[fitted]
    seen = _running(run, judged.samples, since)
    figures = {"peak_running": Judged(float(seen[0].max()), float(seen[1].max()))}
    for name, measure in _MEASURES.items():
        figures[name] = Judged(measure(real, late), measure(simulated, late))
    return Calibration(
        step_time=loss.step_time(best),
        constants=constants,
        error=loss(best),
        fitted=fitted,
        judged=run.trace.requests - fitted,
        figures=figures,
        running_mae=float(np.abs(seen[0] - seen[1]).mean()),
    )


def stages() -> int:
    """Return how often `calibrate_step` calls `advance`."""
    return len(_STARTS) + 2 * len(CONSTANTS)


@dataclass(frozen=True)
class _Times:
    ttft: NDArray[np.float64]
    latency: NDArray[np.float64]


_MEASURES: dict[str, Callable[[_Times, slice], float]] = {
    "ttft_mean": lambda times, part: float(times.ttft[part].mean()),
    "latency_p50": lambda times, part: float(np.percentile(times.latency[part], 50)),
    "latency_p99": lambda times, part: float(np.percentile(times.latency[part], 99)),
}


class _Loss:
    """The error of some constants, given as logarithms, over the fitted requests."""

    def __init__(self, run: Run, fitted: int) -> None:
        self.run, self.part = run, slice(0, fitted)
        self.measurements = 2 * fitted

    def step_time(self, point: Point) -> StepTime:
        base, decode, kv_token, prefill_token = np.exp(point).tolist()
        return StepTime(base, decode, kv_token, prefill_token, source="fitted")

    def __call__(self, point: Point) -> float:
        if np.abs(point - _MIDDLE).max() > math.log(1e4):
            return math.inf
        made = simulate(self.run.trace, self.run.settings, self.step_time(point)).each
        first = (made.first_token - self.run.first_token)[self.part]
        decoding = (made.finish - self.run.finish)[self.part] - first
        return math.sqrt(float(np.mean(np.concatenate([first, decoding]) ** 2)))


def _fit(loss: _Loss, done: Callable[[], None]) -> Point:
    best, least = _MIDDLE, math.inf
    for compute, memory in _STARTS:
        start = _MIDDLE + np.array([compute, compute, memory, -compute])
        point, _ = minimise(loss, start, 0.3, 80)
        point, value = minimise(loss, point, 0.1, 60)
        if value < least:
            best, least = point, value
        done()
    return minimise(loss, best, 0.03, 100)[0]


def _profiles(loss: _Loss, best: Point, done: Callable[[], None]) -> tuple[Constant, ...]:
    """Return each constant with the ends of its interval: the first values on the walk that fit worse."""
    worst = loss(best) * math.sqrt(1 + _CHI_SQUARE / max(loss.measurements - best.size, 1))
    found = []
    for place, name in enumerate(CONSTANTS):
        ends = []
        for sign in (-1.0, 1.0):
            ends.append(_walk(loss, best, place, sign, worst))
            done()
        found.append(Constant(name, float(np.exp(best[place])), ends[0], ends[1]))
    return tuple(found)


def _walk(loss: _Loss, best: Point, place: int, sign: float, worst: float) -> float | None:
    others = np.delete(np.arange(best.size), place)
    at = best.copy()
    for distance in _WALK:
        at[place] = best[place] + sign * distance

        def fixed(free: Point, at: Point = at) -> float:
            point = at.copy()
            point[others] = free
            return loss(point)

        at[others], value = minimise(fixed, at[others], 0.1, 30)
        if value > worst:
            return float(np.exp(at[place]))
    return None


def _interval(run: Run) -> float:
    return float(run.times[0])


def _running(
    run: Run, samples: NDArray[np.float64], since: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the running requests, real and simulated, at each time of the log from `since` on."""
    simulated = np.zeros(run.times.size)
    count = min(len(samples), run.times.size)
    simulated[:count] = samples[:count, places.S_RUNNING]
    late = run.times >= since
    return run.running[late].astype(np.float64), simulated[late]
