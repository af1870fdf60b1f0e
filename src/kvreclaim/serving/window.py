"""The requests that the kernel sees at a time: those that wait or run, and the next part of the trace.

Requests are numbered within the window, in order of arrival. When the last of them has arrived, those that
have ended go, the others move to the front in the same order, and the next part of the trace follows them:
what is kept is the state of the requests under way, not of all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.serving.kernel import Limits, Requests, new_state
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.kernel.blocks import Blocks, renumbered
from kvreclaim.serving.trace import Trace

MOST_SAMPLES = 1 << 21
_BY_REQUEST = (
    "known",
    "computed",
    "held",
    "behind",
    "offset",
    "dead",
    "prefilling",
    "since",
    "link",
    "status",
    "preemptions",
    "scheduled",
    "first_token",
    "finish",
)


@dataclass(frozen=True)
class Ended:
    """Requests that have ended, finished or refused, by their places in the trace.

    Parameters
    ----------
    place
        int64 ``[requests]``, in order.
    arrival, prompt, output
        As in `Trace`.
    scheduled, first_token, finish
        float64 ``[requests]``, seconds; NaN where it never came to that.
    preemptions
        uint16 ``[requests]``.
    status
        uint8 ``[requests]``: `kernel.state.FINISHED` or `REFUSED_REQUEST`.
    """

    place: NDArray[np.int64]
    arrival: NDArray[np.float64]
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    scheduled: NDArray[np.float64]
    first_token: NDArray[np.float64]
    finish: NDArray[np.float64]
    preemptions: NDArray[np.uint16]
    status: NDArray[np.uint8]


class Window:
    """The kernel's arrays for a part of the trace at a time.

    Parameters
    ----------
    part
        The first part of the trace.
    refused
        Places in it of requests that can't be served.
    limits
        The scheduler's.
    evicting, grouped
        Whether requests lose KV pairs; whether layers lie in groups.
    interval
        Seconds between samples.
    samples
        Rows for samples at first.
    blocks
        Blocks as individuals, for as many requests as the first part has; or None.
    """

    def __init__(
        self,
        part: Trace,
        refused: NDArray[np.int64],
        limits: Limits,
        *,
        evicting: bool,
        grouped: bool,
        interval: float,
        samples: int,
        blocks: Blocks | None,
    ) -> None:
        self._limits, self._evicting, self._grouped = limits, evicting, grouped
        self.requests = Requests(part.arrival, part.prompt, part.output)
        self.state = new_state(
            self.requests, limits, evicting=evicting, grouped=grouped, interval=interval, samples=samples
        )
        self.state.status[refused] = places.REFUSED_REQUEST
        self.state.counts[places.MORE] = 1
        self.blocks = blocks
        self._place = np.arange(part.requests)

    def last(self) -> None:
        """Say that the trace ends with the requests that are here."""
        self.state.counts[places.MORE] = 0

    def longer_samples(self) -> None:
        """Make room for as many samples again; `InputError` where they are too many."""
        rows = self.state.samples
        check_samples(2 * len(rows))
        longer = np.empty((2 * len(rows), rows.shape[1]))
        longer[: len(rows)] = rows
        self.state = self.state._replace(samples=longer)

    def feed(self, part: Trace, refused: NDArray[np.int64]) -> Ended:
        """Let requests that have ended go, and the next part of the trace in; all here must have arrived."""
        old, live = self.state, self._live()
        ended = self._ended(live)
        numbers = np.full(self._place.size, -1, np.int32)
        numbers[live] = np.arange(live.size)
        fresh = new_state(
            Requests(part.arrival, part.prompt, part.output),
            self._limits,
            evicting=self._evicting,
            grouped=self._grouped,
            interval=0.0,
            samples=0,
        )
        fresh.status[refused] = places.REFUSED_REQUEST
        by_request = {
            name: np.concatenate([_rows(getattr(old, name), live), getattr(fresh, name)])
            for name in _BY_REQUEST
        }
        waiting, running = self._waiting(), self._running()
        queue = np.empty(live.size + part.requests, np.int32)  # who runs may come back to the head
        queue[running.size : live.size] = numbers[waiting]
        width = min(self._limits.max_seqs, queue.size) + 1
        rows, tokens = np.empty(width, np.int32), np.zeros(width, np.int32)
        rows[: running.size] = numbers[running]
        old.counts[places.HEAD], old.counts[places.TAIL] = running.size, live.size
        old.counts[places.ARRIVED] = live.size
        self.state = old._replace(queue=queue, running=rows, tokens=tokens, **by_request)
        self.requests = Requests(
            np.concatenate([self.requests.arrival[live], part.arrival]),
            np.concatenate([self.requests.prompt[live], part.prompt]),
            np.concatenate([self.requests.output[live], part.output]),
        )
        first = self._place[-1] + 1
        self._place = np.concatenate([self._place[live], np.arange(first, first + part.requests)])
        if self.blocks is not None:
            self.blocks = renumbered(self.blocks, live, part.requests)
        return ended

    def rest(self) -> Ended:
        """Return the requests that are left when all is done."""
        return self._ended(self._live())

    def _running(self) -> NDArray[np.int32]:
        return self.state.running[: self.state.counts[places.RUNNING]]

    def _waiting(self) -> NDArray[np.int32]:
        return self.state.queue[self.state.counts[places.HEAD] : self.state.counts[places.TAIL]]

    def _live(self) -> NDArray[np.int32]:
        return np.sort(np.concatenate([self._running(), self._waiting()]))

    def _ended(self, live: NDArray[np.int32]) -> Ended:
        gone: slice | NDArray[np.bool_] = slice(None)
        if live.size:  # else no array needs to be copied
            gone = np.ones(self._place.size, np.bool_)
            gone[live] = False
        requests, state = self.requests, self.state
        return Ended(
            place=self._place[gone],
            arrival=requests.arrival[gone],
            prompt=requests.prompt[gone],
            output=requests.output[gone],
            scheduled=state.scheduled[gone],
            first_token=state.first_token[gone],
            finish=state.finish[gone],
            preemptions=state.preemptions[gone],
            status=state.status[gone],
        )


def check_samples(count: float) -> None:
    """Refuse more samples than a table of them holds."""
    if count > MOST_SAMPLES:
        raise InputError(f"the interval makes more than {MOST_SAMPLES:,} samples: pass a longer one")


def _rows(values: NDArray[np.generic], live: NDArray[np.int32]) -> NDArray[np.generic]:
    """Return the values of these requests; arrays that a simulation does without are empty, and stay so."""
    return values[live] if values.size else values
