"""What a simulation says: of each request, over time, and in sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvreclaim.scheduling import SchedulerSettings
from kvreclaim.serving.kernel import State
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.trace import Trace

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Simulation:
    """A finished simulation.

    Attributes
    ----------
    trace, settings
        What was simulated.
    state
        The kernel's state at the end: times of each request, counts.
    refused
        Places in the trace of requests that could not finish even alone.
    simulate_seconds
        Seconds that the simulation took.
    peak_pages
        Most pages held, null block's included; None without pages.
    """

    trace: Trace
    settings: SchedulerSettings
    state: State
    refused: NDArray[np.int64]
    simulate_seconds: float
    peak_pages: int | None = None

    def count(self, place: int) -> int:
        """Return one of the kernel's counts (see `kernel.state`)."""
        return int(self.state.counts[place])

    @property
    def served(self) -> NDArray[np.bool_]:
        """Which requests finished."""
        return np.equal(self.state.status, places.FINISHED)

    @property
    def ttft(self) -> Times:
        """Seconds from arrival to first token, of the requests that finished."""
        served = self.served
        return self.state.first_token[served] - self.trace.arrival[served]

    @property
    def latency(self) -> Times:
        """Seconds from arrival to last token, of the requests that finished."""
        served = self.served
        return self.state.finish[served] - self.trace.arrival[served]

    @property
    def samples(self) -> NDArray[np.float64]:
        """What held at each interval: columns `kernel.state.S_TIME` and following."""
        return self.state.samples[: self.count(places.SAMPLES)]

    @property
    def seconds(self) -> float:
        """Simulated seconds from the first arrival to the last finish."""
        return float(self.state.clock[places.NOW])

    @property
    def pool_binding(self) -> bool:
        """Whether blocks ever lacked: an admission waited for them, or a request was preempted."""
        return self.count(places.BLOCKED) > 0 or self.count(places.PREEMPTIONS) > 0

    def summary(self) -> dict[str, Any]:
        """Return the simulation in sum; None where no request finished."""
        ttft, latency = self.ttft, self.latency
        steps, tokens = self.count(places.STEPS), int(self.trace.output[self.served].sum())
        running = self.samples[:, places.S_RUNNING]
        return {
            "requests": self.trace.requests,
            "refused": int(self.refused.size),
            "iterations": steps,
            "simulate_seconds": self.simulate_seconds,
            "seconds": self.seconds,
            "blocks": self.settings.blocks,
            "peak_running": self.count(places.PEAK_RUNNING),
            "peak_running_sampled": int(running.max()) if running.size else None,
            "peak_waiting": self.count(places.PEAK_WAITING),
            "peak_blocks": self.count(places.PEAK_BLOCKS),
            "preemptions": self.count(places.PREEMPTIONS),
            "evictions": self.count(places.EVICTIONS),
            "blocks_freed": self.count(places.BLOCKS_FREED),
            "peak_pages": self.peak_pages,
            "hit_tokens": self.count(places.HIT_TOKENS),
            "ttft_mean": _mean(ttft),
            "ttft_p99": _percentile(ttft, 99),
            "latency_p50": _percentile(latency, 50),
            "latency_p99": _percentile(latency, 99),
            "output_tokens_per_second": tokens / self.seconds if self.seconds > 0 else None,
            "busy": float(self.state.clock[places.BUSY]) / self.seconds if self.seconds > 0 else None,
            "pool_binding": self.pool_binding,
        }


def _mean(values: Times) -> float | None:
    return float(values.mean()) if values.size else None


def _percentile(values: Times, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values.size else None
