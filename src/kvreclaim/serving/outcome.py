"""What a simulation says: in sum, over time, and of each request where the trace is held."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.scheduling import SchedulerSettings
from kvreclaim.serving.digest import Digest
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.trace import Traffic
from kvreclaim.serving.window import Ended

NAMED = 3  # refused requests that are named


@dataclass
class Totals:
    """Sums over the requests that have ended.

    Parameters
    ----------
    ttft, latency
        Seconds from arrival to the first and to the last token, of those that finished.
    output_tokens
        Tokens that those generated.
    refused
        How many could not finish even alone.
    first_refused
        Places in the trace and tokens of the first of them to be let go.
    """

    ttft: Digest = field(default_factory=Digest)
    latency: Digest = field(default_factory=Digest)
    output_tokens: int = 0
    refused: int = 0
    first_refused: tuple[tuple[int, int], ...] = ()

    @property
    def served(self) -> int:
        """How many finished."""
        return self.latency.count

    def add(self, ended: Ended) -> None:
        """Take in requests that have ended."""
        served = ended.status == places.FINISHED
        self.ttft.add(ended.first_token[served] - ended.arrival[served])
        self.latency.add(ended.finish[served] - ended.arrival[served])
        self.output_tokens += int(ended.output[served].sum())
        refused = np.flatnonzero(ended.status == places.REFUSED_REQUEST)
        self.refused += refused.size
        for row in refused[: NAMED - len(self.first_refused)]:
            tokens = int(ended.prompt[row]) + int(ended.output[row])
            self.first_refused += ((int(ended.place[row]), tokens),)


@dataclass(frozen=True)
class ByRequest:
    """What became of each request, in the trace's order; the arrays are those of `window.Ended`."""

    scheduled: NDArray[np.float64]
    first_token: NDArray[np.float64]
    finish: NDArray[np.float64]
    preemptions: NDArray[np.uint16]
    status: NDArray[np.uint8]

    @classmethod
    def of(cls, requests: int) -> ByRequest:
        """Return arrays to be filled."""
        return cls(
            np.empty(requests),
            np.empty(requests),
            np.empty(requests),
            np.empty(requests, np.uint16),
            np.empty(requests, np.uint8),
        )

    def add(self, ended: Ended) -> None:
        """Write down requests that have ended."""
        place = ended.place
        whole = place.size == self.status.size  # then in order
        for name in ("scheduled", "first_token", "finish", "preemptions", "status"):
            getattr(self, name)[slice(None) if whole else place] = getattr(ended, name)

    @property
    def served(self) -> NDArray[np.bool_]:
        """Which requests finished."""
        return np.equal(self.status, places.FINISHED)


@dataclass(frozen=True)
class Simulation:
    """A finished simulation.

    Attributes
    ----------
    trace, settings
        What was simulated.
    counts, clock
        Of the kernel at the end (see `kernel.state`).
    samples
        What held at each interval: columns `kernel.state.S_TIME` and following.
    totals
        Sums over the requests.
    by_request
        What became of each, where the trace is held in memory; else None.
    simulate_seconds
        Seconds that the simulation took, without reading the trace.
    peak_pages
        Most pages held, null block's included; None without pages.
    """

    trace: Traffic
    settings: SchedulerSettings
    counts: NDArray[np.int64]
    clock: NDArray[np.float64]
    samples: NDArray[np.float64]
    totals: Totals
    by_request: ByRequest | None
    simulate_seconds: float
    peak_pages: int | None = None

    def count(self, place: int) -> int:
        """Return one of the kernel's counts (see `kernel.state`)."""
        return int(self.counts[place])

    @property
    def each(self) -> ByRequest:
        """What became of each request; `InputError` where the trace is not held."""
        if self.by_request is None:
            raise InputError(f"{self.trace.name}: is not held in memory; pass a trace of `read_trace`")
        return self.by_request

    @property
    def seconds(self) -> float:
        """Simulated seconds from the first arrival to the last finish."""
        return float(self.clock[places.NOW])

    @property
    def pool_binding(self) -> bool:
        """Whether blocks ever lacked: one waited for them, was preempted, or is longer than all."""
        lacking = self.count(places.BLOCKED) or self.count(places.PREEMPTIONS) or self.totals.refused
        return lacking > 0

    def summary(self) -> dict[str, Any]:
        """Return the simulation in sum; None where no request finished."""
        ttft, latency, tokens = self.totals.ttft, self.totals.latency, self.totals.output_tokens
        (ttft_p99,), (latency_p50, latency_p99) = ttft.some(99), latency.some(50, 99)
        running = self.samples[:, places.S_RUNNING]
        return {
            "requests": self.trace.requests,
            "refused": self.totals.refused,
            "iterations": self.count(places.STEPS),
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
            "ttft_mean": ttft.mean,
            "ttft_p99": ttft_p99,
            "latency_p50": latency_p50,
            "latency_p99": latency_p99,
            "percentile_error": latency.error,
            "output_tokens_per_second": tokens / self.seconds if self.seconds > 0 else None,
            "busy": float(self.clock[places.BUSY]) / self.seconds if self.seconds > 0 else None,
            "pool_binding": self.pool_binding,
        }
