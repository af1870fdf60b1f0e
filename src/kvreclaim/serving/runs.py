"""Recorded runs of vLLM: PREFIX.requests.jsonl, PREFIX.meta.json and PREFIX.timeseries.csv."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.scheduling import NULL_BLOCKS, SchedulerSettings
from kvreclaim.serving.trace import Trace
from kvreclaim.serving.traces import read_trace

Times = NDArray[np.float64]
_BLOCK_SIZE = 16  # vLLM's own, where the run does not name one


@dataclass(frozen=True)
class Run:
    """A recorded run.

    Attributes
    ----------
    name
        The last part of its prefix.
    trace
        Its requests, in order of arrival; seconds from the first.
    first_token, finish
        float64 ``[requests]``: when each request really got its first and its last token.
    times, running
        When the running requests were counted, and how many there were.
    settings
        The engine's pool and limits.
    bound
        Whether the run names its pool; else it is taken as too large to matter.
    """

    name: str
    trace: Trace
    first_token: Times
    finish: Times
    times: Times
    running: NDArray[np.int64]
    settings: SchedulerSettings
    bound: bool


def load_run(prefix: str) -> Run:
    """Read a recorded run.

    Raises
    ------
    InputError
        If a file is missing, or lacks what it should hold.
    """
    trace = read_trace(f"{prefix}.requests.jsonl")
    rows = _table(f"{prefix}.requests.jsonl").sort("queued_ts", maintain_order=True)
    if rows.height != trace.requests:
        raise InputError(
            f"{prefix}.requests.jsonl: holds requests without output; pass those that were served"
        )
    start = float(rows["queued_ts"][0])
    series = _table(f"{prefix}.timeseries.csv")
    settings, bound = _settings(f"{prefix}.meta.json", trace)
    return Run(
        name=Path(prefix).name,
        trace=trace,
        first_token=rows["first_token_ts"].cast(pl.Float64).to_numpy() - start,
        finish=rows["last_token_ts"].cast(pl.Float64).to_numpy() - start,
        times=series["t"].cast(pl.Float64).to_numpy(),
        running=series["running"].cast(pl.Int64).to_numpy(),
        settings=settings,
        bound=bound,
    )


_COLUMNS = {".jsonl": ("queued_ts", "first_token_ts", "last_token_ts"), ".csv": ("t", "running")}


def _table(file: str) -> pl.DataFrame:
    columns = _COLUMNS[Path(file).suffix]
    try:
        content = Path(file).read_bytes()  # not by name: Polars reads stars in one as a pattern
        read = pl.read_ndjson(content) if file.endswith(".jsonl") else pl.read_csv(content)
        found = read.select(columns)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(f"{file}: can't be read ({reason}); pass the PREFIX of a recorded run") from error
    if found.height == 0 or found.null_count().sum_horizontal().item():
        raise InputError(f"{file}: lacks numbers in {', '.join(columns)}; pass a whole run")
    return found


def _settings(file: str, trace: Trace) -> tuple[SchedulerSettings, bool]:
    try:
        meta = json.loads(Path(file).read_bytes())
        engine = meta["engine_kwargs"]
        cache: Mapping[str, Any] = meta.get("kv_cache") or {}
        scheduler: Mapping[str, Any] = (meta.get("resolved_config") or {}).get("scheduler_config") or {}
        block_size = int(cache.get("block_size") or _BLOCK_SIZE)
        pool = cache.get("num_gpu_blocks")
        ample = int(np.sum(-(-(trace.prompt.astype(np.int64) + trace.output) // block_size)))
        settings = SchedulerSettings(
            blocks=ample if pool is None else int(pool) - NULL_BLOCKS,
            block_size=block_size,
            max_num_seqs=int(engine["max_num_seqs"]),
            max_num_batched_tokens=int(engine["max_num_batched_tokens"]),
            reserve_full_input=bool(scheduler.get("scheduler_reserve_full_isl", True)),
            chunked_prefill=bool(scheduler.get("enable_chunked_prefill", True)),
        )
    except OSError as error:
        raise InputError(f"{file}: can't be read ({error.strerror}); pass the PREFIX of a run") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{file}: names no engine limits ({error}); pass the PREFIX of a recorded run"
        ) from error
    return settings, pool is not None
