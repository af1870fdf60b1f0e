"""Reading a trace: lazily, in batches, each row checked and a broken one named by its line."""

from __future__ import annotations

import json
from os import PathLike, fspath
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.serving.arrivals import arriving
from kvreclaim.serving.trace import LONGEST, Trace
from kvreclaim.serving.traces.kinds import kind_of
from kvreclaim.serving.traces.rows import read_rows
from kvreclaim.serving.traces.tables import Table, open_table

LONG_GAP = 3600.0  # seconds without an arrival that a reader should hear of
SPARSE, DENSE = 3600.0, 1e-6  # mean seconds between arrivals that speak of another unit


def read_trace(
    path: str | PathLike[str],
    *,
    requests: int | None = None,
    rate: float | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
) -> Trace:
    """Read a trace, its kind recognised by its columns.

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
    file = fspath(path)
    if not Path(file).is_file():
        state = "is a directory" if Path(file).is_dir() else "there is no such file"
        raise InputError(f"{file}: {state}; pass a trace")
    if (bench := _bench(file)) is not None:
        arrival, trace = bench
    else:
        table = open_table(file)
        arrival, trace = _from_table(table, requests)
    if rate is not None:
        return arriving(trace, rate, burstiness=burstiness, seed=seed)
    if not arrival:
        raise InputError(f"{file}: holds lengths and no arrivals; pass --rate, requests a second")
    _check_unit(trace, file)
    return trace


def _from_table(table: Table, requests: int | None) -> tuple[bool, Trace]:
    kind = kind_of(table.columns, table.file)
    rows = read_rows(table, kind, requests)
    notes = rows.notes
    gaps = np.diff(rows.arrival)
    if gaps.size and gaps.max() > LONG_GAP:
        notes = (
            *notes,
            f"nothing arrives for {gaps.max() / 3600:.1f} h after {rows.arrival[gaps.argmax()]:.0f} s",
        )
    trace = Trace(
        rows.arrival,
        rows.prompt,
        rows.output,
        name=Path(table.file).stem,
        prefixes=rows.prefixes,
        notes=notes,
    )
    return kind.arrival is not None, trace


def _check_unit(trace: Trace, file: str) -> None:
    if trace.requests > 1 and trace.span > 0:
        gap = trace.span / (trace.requests - 1)
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
    if array.dtype.kind not in "iu" or (array.size and not 0 <= array.min() <= array.max() <= LONGEST):
        raise ValueError("no token counts")
    return array.astype(np.int32)
