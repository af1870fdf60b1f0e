"""A trace: when requests arrive, how long their prompts and outputs are, and which prefixes they share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.validate import positive_int

LONGEST = 2**31 - 1  # tokens that a 32-bit count holds
HELD = 1 << 20  # requests up to which a trace is held in memory
LATEST = 1e11  # seconds: later, a clock of 64 bits would miss steps
WINDOW = 1 << 18  # requests that are simulated at a time


@dataclass(frozen=True)
class Prefixes:
    """Hashes of the prompts' blocks: requests with equal leading hashes share the KV of those tokens.

    Parameters
    ----------
    block_tokens
        Tokens that one hash stands for (512 in Mooncake's traces).
    offsets
        int64 ``[requests + 1]``: request i has the hashes ``ids[offsets[i]:offsets[i + 1]]``.
    ids
        int32: each hash as a small number, from 0.
    """

    block_tokens: int
    offsets: NDArray[np.int64]
    ids: NDArray[np.int32]

    @property
    def distinct(self) -> int:
        """How many hashes differ."""
        return int(self.ids.max()) + 1 if self.ids.size else 0


class Traffic(Protocol):
    """A trace, in memory or in a file, as the simulator takes it: in windows."""

    @property
    def name(self) -> str:
        """What it is called in tables."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What its reader has to say."""

    @property
    def prefixes(self) -> Prefixes | None:
        """Hashes of the prompts' blocks; then all requests come in one window."""

    @property
    def in_memory(self) -> bool:
        """Whether it is: then the simulator answers request by request too."""

    @property
    def requests(self) -> int:
        """How many requests."""

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last."""

    @property
    def longest(self) -> tuple[int, int]:
        """Tokens of the longest prompt, and of the longest output."""

    @property
    def mean(self) -> tuple[float, float]:
        """Tokens of a prompt, and of an output, in the mean."""

    def faster(self, times: float) -> Traffic:
        """Return the same requests arriving so many times as fast."""

    def windows(self, size: int) -> Iterator[Trace]:
        """Yield the requests in order, at most so many at a time."""


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival, as arrays of 16 bytes a request.

    Parameters
    ----------
    arrival
        float64 ``[requests]``, seconds from the first, never falling.
    prompt, output
        int32 ``[requests]``, tokens, at least 1.
    name
        What it is called in tables.
    prefixes
        Hashes of the prompts' blocks, where the trace has them.
    notes
        What its reader has to say: rows left out, long gaps.

    Raises
    ------
    InputError
        If the arrays differ in length, are empty, or hold what no request can be.
    """

    arrival: NDArray[np.float64]
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    name: str = "trace"
    prefixes: Prefixes | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field, dtype in (("arrival", np.float64), ("prompt", np.int32), ("output", np.int32)):
            object.__setattr__(self, field, _column(getattr(self, field), field, np.dtype(dtype)))
        if len({self.arrival.size, self.prompt.size, self.output.size}) != 1 or not self.arrival.size:
            raise InputError(f"{self.name}: pass arrivals, prompts and outputs of one length, at least 1")
        if not np.isfinite(self.arrival).all() or self.arrival[0] < 0 or (np.diff(self.arrival) < 0).any():
            raise InputError(f"{self.name}: arrivals must be finite seconds from 0 on, in order")
        check_latest(float(self.arrival[-1]))
        if min(self.prompt.min(), self.output.min()) < 1:
            raise InputError(f"{self.name}: prompts and outputs need at least one token each")

    @property
    def in_memory(self) -> bool:
        """It is."""
        return True

    @property
    def requests(self) -> int:
        """How many requests."""
        return self.arrival.size

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival[-1] - self.arrival[0])

    @property
    def longest(self) -> tuple[int, int]:
        """Tokens of the longest prompt, and of the longest output."""
        return int(self.prompt.max()), int(self.output.max())

    @property
    def mean(self) -> tuple[float, float]:
        """Tokens of a prompt, and of an output, in the mean."""
        return float(self.prompt.mean()), float(self.output.mean())

    def windows(self, size: int) -> Iterator[Trace]:
        """Yield the requests in order, at most so many at a time; all at once where they share prefixes."""
        if self.requests <= size or self.prefixes is not None:
            yield self
            return
        for start in range(0, self.requests, size):
            part = slice(start, start + size)
            yield replace(
                self, arrival=self.arrival[part], prompt=self.prompt[part], output=self.output[part]
            )

    def head(self, requests: int) -> Trace:
        """Return the first requests."""
        count = min(positive_int(requests, "requests"), self.requests)
        prefixes = self.prefixes
        if prefixes is not None:
            offsets = prefixes.offsets[: count + 1]
            prefixes = Prefixes(prefixes.block_tokens, offsets, prefixes.ids[: offsets[-1]])
        return replace(
            self,
            arrival=self.arrival[:count],
            prompt=self.prompt[:count],
            output=self.output[:count],
            prefixes=prefixes,
        )

    def faster(self, times: float) -> Trace:
        """Return the same requests arriving so many times as fast."""
        check_latest(float(self.arrival[-1]) / check_load(times))
        return replace(self, arrival=self.arrival / times)


def check_load(times: float) -> float:
    """Return how many times as fast requests arrive; `InputError` if they can't."""
    if not 0 < times < np.inf:
        raise InputError(f"the load is {times}: pass a finite number greater than 0")
    return times


def check_latest(arrival: float) -> None:
    """Refuse arrivals so late that the clock would not tell steps apart."""
    if arrival > LATEST:
        raise InputError(
            f"the last request arrives after {arrival:.3g} s, over {LATEST:.0g}: pass a higher load or rate"
        )


def _column(values: object, name: str, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise InputError(f"{name}: pass one number for each request")
    if dtype.kind == "i" and array.size and not (array.min() >= 0 and array.max() <= LONGEST):
        raise InputError(f"{name}: pass whole tokens from 1 to {LONGEST}")
    return np.ascontiguousarray(array, dtype)
