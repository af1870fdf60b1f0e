"""Reading a trace: lazily, in batches, each row checked and a broken one named by its line."""

from __future__ import annotations

import json
from os import PathLike, fspath
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.serving.arrivals import arriving
from kvreclaim.serving.trace import HELD, LONGEST, Prefixes, Trace
from kvreclaim.serving.traces.kinds import kind_of
from kvreclaim.serving.traces.rows import Batch
from kvreclaim.serving.traces.stored import MadeUp, Outline, Source, StoredTrace
from kvreclaim.serving.traces.tables import open_table

SPARSE, DENSE = 3600.0, 1e-6  # mean seconds between arrivals that speak of another unit


def read_trace(
    path: str | PathLike[str],
    *,
    requests: int | None = None,
    rate: float | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
) -> Trace:
    """Read a trace into memory, its kind recognised by its columns.

    Parameters
    ----------
    path
        CSV, JSON lines or Parquet of a kind in `kinds.KINDS`, or the JSON of ``vllm bench serve``.
    requests
        Read the first so many only.
    rate
        Mean arrivals a second, for files that hold lengths alone, or in place of a file's own arrivals.
    burstiness, seed
        Of such arrivals (see `arrivals.poisson`).

    Raises
    ------
    InputError
        If the file can't be read, its columns are unknown, a row is broken (named by its line), rows are out
        of order, or it holds no arrivals and no rate is given.
    """
    opened = open_trace(path, requests=requests, rate=rate, burstiness=burstiness, seed=seed, held=None)
    return next(opened.windows(opened.requests))


def open_trace(
    path: str | PathLike[str],
    *,
    requests: int | None = None,
    rate: float | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
    held: int | None = HELD,
) -> Trace | StoredTrace:
    """Read a trace once, and hold it, or, where it has more requests, read it again at each use.

    Held in any case: what has prefix hashes, is not in order of arrival, or comes from ``vllm bench serve``.

    Parameters
    ----------
    path, requests, rate, burstiness, seed
        See `read_trace`.
    held
        The most requests that are held; None: all.

    Raises
    ------
    InputError
        As `read_trace`.
    """
    file = fspath(path)
    if not Path(file).is_file():
        state = "is a directory" if Path(file).is_dir() else "there is no such file"
        raise InputError(f"{file}: {state}; pass a trace")
    made_up = None if rate is None else MadeUp(rate, burstiness, seed)
    if (bench := _bench(file)) is not None:
        return _timed(file, *bench, made_up)
    table = open_table(file)
    source = Source(table, kind_of(table.columns, file), requests, made_up)
    if source.kind.arrival is None and made_up is None:
        raise _no_arrivals(file)
    most = held if source.kind.hashes is None and source.kind.ordered else None
    return _read(source, most)


def _read(source: Source, most: int | None) -> Trace | StoredTrace:
    """Read the rows once; hold them where they are not more than so many."""
    file, reading, outline = source.table.file, source.reading(), Outline()
    batches: list[Batch] = []
    for batch in source.batches(reading):
        outline.add(batch)
        batches.append(batch)
        if most is not None and outline.requests > most:
            batches.clear()
    if not outline.requests:
        raise InputError(f"{file}: holds no request; pass a trace with rows")
    notes = reading.notes
    if source.made_up is None:
        _check_unit(file, outline.requests, outline.last)
        notes = (*notes, *outline.notes)
    if not batches:
        return StoredTrace(source, outline, Path(file).stem, notes)
    arrival, prompt, output = (np.concatenate([batch[place] for batch in batches]) for place in range(3))
    prefixes = _prefixes(batches, source.kind.block_tokens)
    return Trace(arrival, prompt, output, Path(file).stem, prefixes, notes)


def _timed(file: str, has_arrivals: bool, trace: Trace, made_up: MadeUp | None) -> Trace:
    """Return a trace that is held already with the arrivals wanted."""
    if made_up is not None:
        return arriving(trace, made_up.rate, burstiness=made_up.burstiness, seed=made_up.seed)
    if not has_arrivals:
        raise _no_arrivals(file)
    _check_unit(file, trace.requests, trace.span)
    return trace


def _no_arrivals(file: str) -> InputError:
    return InputError(f"{file}: holds lengths and no arrivals; pass --rate, requests a second")


def _prefixes(batches: list[Batch], block_tokens: int) -> Prefixes | None:
    found = [batch.hashes for batch in batches if batch.hashes is not None]
    if not found:
        return None
    lengths, values = (np.concatenate(column) for column in zip(*found, strict=True))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    _, ids = np.unique(values, return_inverse=True)
    return Prefixes(block_tokens, offsets, ids.astype(np.int32))


def _check_unit(file: str, requests: int, span: float) -> None:
    if requests > 1 and span > 0:
        gap = span / (requests - 1)
        if not DENSE < gap < SPARSE:
            raise InputError(
                f"{file}: {gap:.3g} s between arrivals in the mean: pass arrivals in seconds, or --rate"
            )


def _bench(file: str) -> tuple[bool, Trace] | None:
    """Return the trace of ``vllm bench serve --save-detailed``, or None where the file is something else.

    Its keys: vllm/benchmarks/serve.py (input_lens, output_lens, start_times).
    """
    if Path(file).suffix != ".json":
        return None
    try:
        content = json.loads(Path(file).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not {"input_lens", "output_lens"} <= content.keys():
        return None
    try:
        prompt = _lengths(content["input_lens"])
        output = _lengths(content["output_lens"])
        starts = content.get("start_times")
        arrival = np.zeros(prompt.size) if starts is None else np.asarray(starts, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{file}: its lengths are no lists of numbers; pass vLLM's own output") from error
    if not prompt.shape == output.shape == arrival.shape or prompt.ndim != 1:
        raise InputError(f"{file}: its lists differ in length; pass vLLM's own output")
    served = output > 0
    left_out = int(np.count_nonzero(~served))
    notes = (f"{left_out} requests without output left out",) if left_out else ()
    order = np.argsort(arrival[served], kind="stable")
    first = arrival[served].min() if served.any() else 0.0
    prompt, output = (values[served][order].astype(np.int32) for values in (prompt, output))
    trace = Trace(arrival[served][order] - first, prompt, output, Path(file).stem, notes=notes)
    return starts is not None, trace


def _lengths(values: object) -> NDArray[np.int32]:
    array = np.asarray(values)
    if isinstance(values, list) and any(isinstance(value, bool) for value in values):
        raise ValueError("no token counts")  # NumPy would take them for 0 and 1
    if array.dtype.kind not in "iu" or (array.size and not 0 <= array.min() <= array.max() <= LONGEST):
        raise ValueError("no token counts")
    return array.astype(np.int32)
