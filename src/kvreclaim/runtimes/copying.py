"""Timing copies on this machine: many sizes, in few runs and in many, each beside a plain copy.

- `slices`: one copy per run, as a runtime does that calls ``memcpy`` for each;
- `gather`: all rows of a copy by index; a run is then a stretch of rows;
- `pack`: pairs by index within vLLM's cache on a CPU, as kvreclaim's plugin packs a layer. Needs torch.

Sources and destinations lie scattered over buffers larger than caches, elsewhere in each round, for the
blocks of a request are cold when it is packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvreclaim.cost import CopySample
from kvreclaim.errors import InputError
from kvreclaim.validate import positive_int

BUFFER_BYTES = 128 << 20
ROW_BYTES = 512  # one KV pair of SmolLM2 in 32 bits, of Llama 3 in 16 bits: K and V of 64 or 128 numbers
LEAST_ROUNDS = 10
PACK_HEADS, PACK_BLOCK = 3, 32  # of SmolLM2 in vLLM on a CPU
PACKED_FROM = 4  # slots that leave, for each that stays
BUFFERS = ((64 << 10, 512 << 10, 4 << 20, 16 << 20), (1, 16, 128, 1024))
LAYERS = ((16 << 10, 64 << 10, 256 << 10, 1 << 20), (1, 4, 16, 64, 256, 1024))
POINTS = {"slices": BUFFERS, "gather": BUFFERS, "pack": LAYERS}
"""Sizes in bytes, and numbers of runs, of each way."""

Copy = Callable[[], None]


@dataclass(frozen=True)
class MeasuredCopy:
    """Bytes in runs, and medians over rounds.

    Attributes
    ----------
    moved_bytes, runs
        What was copied.
    seconds, plain_seconds
        Of the copy, and of a plain copy of as many bytes.
    slowdown
        Of the ratios of the two, round by round.
    rounds
        How many.
    """

    moved_bytes: int
    runs: int
    seconds: float
    plain_seconds: float
    slowdown: float
    rounds: int

    @property
    def sample(self) -> CopySample:
        """What a fit takes."""
        return CopySample(self.moved_bytes, self.runs, self.seconds)


@dataclass(frozen=True)
class Device:
    """Two buffers of rows, uint8 ``[rows, ROW_BYTES]``, and what waits until copies between them are done."""

    name: str
    source: Any
    destination: Any
    synchronize: Callable[[], None]
    indices: Callable[[NDArray[np.int64]], Any]


def devices() -> tuple[str, ...]:
    """Return the devices there are: ``cpu``, and ``cuda`` where torch sees a GPU."""
    if find_spec("torch") is None:
        return ("cpu",)
    import torch

    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def ways(device: str) -> tuple[str, ...]:
    """Return the ways to copy on a device."""
    packs = device == "cpu" and find_spec("torch") is not None
    return tuple(way for way in POINTS if packs or way != "pack")


def open_device(name: str, buffer_bytes: int = BUFFER_BYTES) -> Device:
    """Return a device with its buffers written once: NumPy's on ``cpu``, torch's on ``cuda``.

    Raises
    ------
    InputError
        If there is no such device.
    """
    if name not in devices():
        raise InputError(f"device {name!r} is not here: pass one of {', '.join(devices())}")
    shape = (buffer_bytes // ROW_BYTES, ROW_BYTES)
    if name == "cpu":
        return Device(name, np.ones(shape, np.uint8), np.zeros(shape, np.uint8), _done, lambda rows: rows)
    import torch

    return Device(
        name,
        torch.ones(shape, dtype=torch.uint8, device=name),
        torch.zeros(shape, dtype=torch.uint8, device=name),
        torch.cuda.synchronize,
        lambda rows: torch.from_numpy(rows).to(name),
    )


def measure(
    device: Device,
    way: str,
    sizes: Sequence[int] | None = None,
    runs: Sequence[int] | None = None,
    rounds: int = LEAST_ROUNDS + 1,
    report: Callable[[int, int], None] | None = None,
) -> list[MeasuredCopy]:
    """Time copies of each size in each number of runs, round by round, a plain copy after each.

    Parameters
    ----------
    device
        Where.
    way
        One of `ways`.
    sizes
        Bytes, whole rows, at most half of the device's buffers; by default those of `POINTS`.
    runs
        Numbers of runs, by default those of `POINTS`; those that do not divide the rows are left out, and of
        `pack` those longer than a block.
    rounds
        Interleaved pairs, at least 10; one more that is not counted goes before.
    report
        Called with the rounds done and all of them.

    Raises
    ------
    InputError
        If a number is out of range or the way is unknown.
    """
    if way not in ways(device.name):
        raise InputError(f"way {way!r} is not here: pass one of {', '.join(ways(device.name))}")
    if positive_int(rounds, "rounds") < LEAST_ROUNDS:
        raise InputError(f"rounds is {rounds}: pass at least {LEAST_ROUNDS} pairs")
    generator = np.random.default_rng(0)
    longest = PACK_BLOCK if way == "pack" else len(device.source)
    points = list(_points(device, sizes or POINTS[way][0], runs or POINTS[way][1], longest))
    seconds = np.empty((rounds + 1, len(points), 2))
    for done in range(rounds + 1):
        for place, (rows, count) in enumerate(points):
            copies = (_COPIES[way](device, rows, count, generator), _plain(device, rows, generator))
            seconds[done, place] = [_time(copy, device) for copy in copies]
        if report is not None:
            report(done + 1, rounds + 1)
    medians = np.median(seconds[1:], axis=0).tolist()
    ratios = np.median(seconds[1:, :, 0] / seconds[1:, :, 1], axis=0).tolist()
    return [
        MeasuredCopy(rows * ROW_BYTES, count, own, plain, ratio, rounds)
        for (rows, count), (own, plain), ratio in zip(points, medians, ratios, strict=True)
    ]


def _points(
    device: Device, sizes: Sequence[int], runs: Sequence[int], longest: int
) -> Iterator[tuple[int, int]]:
    """Yield rows and runs of each copy, as many rows in each run and no more than the longest run."""
    most = len(device.source) // 2
    for size in sizes:
        rows = positive_int(size, "size") // ROW_BYTES
        if rows * ROW_BYTES != size or rows > most:
            raise InputError(
                f"size is {size}: pass whole rows of {ROW_BYTES} bytes, at most {most * ROW_BYTES}"
            )
        for count in runs:
            if rows % positive_int(count, "runs") == 0 and rows // count <= longest:
                yield rows, count


def _slices(device: Device, rows: int, runs: int, generator: np.random.Generator) -> Copy:
    """Return a copy that moves run by run."""
    length = rows // runs
    starts = [_scattered(device, runs, length, generator).tolist() for _ in range(2)]

    def copy() -> None:
        source, destination = device.source, device.destination
        for from_row, to_row in zip(*starts, strict=True):
            destination[to_row : to_row + length] = source[from_row : from_row + length]

    return copy


def _gather(device: Device, rows: int, runs: int, generator: np.random.Generator) -> Copy:
    """Return a copy that moves all rows by index."""
    length = rows // runs
    within = np.arange(length)
    from_rows, to_rows = (
        device.indices((_scattered(device, runs, length, generator)[:, None] + within).ravel())
        for _ in range(2)
    )

    def copy() -> None:
        device.destination[to_rows] = device.source[from_rows]

    return copy


def _pack(device: Device, rows: int, runs: int, generator: np.random.Generator) -> Copy:
    """Return a copy of pairs by index within a layer's cache, as a pack of one request moves them.

    The request's blocks lie anywhere in the cache; of a fifth of its slots, those that stay, all are written
    from the other four. Within a head, sources and destinations ascend.
    """
    import torch

    from kvreclaim.runtimes.vllm.cache import LayerCache

    blocks = len(device.source) // (PACK_HEADS * PACK_BLOCK)
    numbers = torch.from_numpy(device.destination).view(torch.float32)[: blocks * PACK_HEADS * PACK_BLOCK]
    cache = LayerCache(numbers.view(blocks, PACK_HEADS, PACK_BLOCK, -1))
    length, of_head = rows // runs, -(-runs // PACK_HEADS)
    staying = -(-of_head * length // PACK_BLOCK) * PACK_BLOCK
    starts, ends = (
        np.concatenate([_ascending(slots // length, of_head, generator) for _ in range(PACK_HEADS)])[:runs]
        for slots in (PACKED_FROM * staying, staying)
    )
    within = np.arange(length)
    source, destination = (
        torch.from_numpy((first[:, None] * length + within).ravel()) for first in (starts, ends)
    )
    head = torch.from_numpy(np.repeat(np.repeat(np.arange(PACK_HEADS), of_head)[:runs], length))
    row = torch.from_numpy(generator.choice(blocks, (1 + PACKED_FROM) * staying // PACK_BLOCK, replace=False))

    def copy() -> None:
        cache.move(row, head, source, destination + PACKED_FROM * staying)

    return copy


def _ascending(places: int, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return so many of the places, in order."""
    return np.sort(generator.choice(places, count, replace=False))


def _plain(device: Device, rows: int, generator: np.random.Generator) -> Copy:
    """Return a copy of consecutive rows, from one random place to another."""
    return _slices(device, rows, 1, generator)


def _scattered(device: Device, runs: int, length: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return the first rows of runs that do not overlap, in random order."""
    places = len(device.source) // length
    return generator.choice(places, runs, replace=False) * length


def _time(copy: Copy, device: Device) -> float:
    device.synchronize()
    start = perf_counter()
    copy()
    device.synchronize()
    return perf_counter() - start


def _done() -> None:
    """On the CPU a copy is done when it returns."""


_COPIES = {"slices": _slices, "gather": _gather, "pack": _pack}
