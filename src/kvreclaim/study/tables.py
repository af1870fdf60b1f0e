"""The files of a reproduction, as text: equal seeds give equal bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from kvreclaim.study.faults import FAULTS
from kvreclaim.study.published import Judged
from kvreclaim.study.rows import Row

SCHEMA = 1

_SUMMARY_TYPES = {
    "experiment": pl.String,
    "policy": pl.String,
    "x_name": pl.String,
    "x": pl.Float64,
    "metric": pl.String,
    "kind": pl.String,
    "mean": pl.Float64,
    "std": pl.Float64,
    "n": pl.Int64,
}
_PUBLISHED_TYPES = {
    "id": pl.String,
    "quantity": pl.String,
    "published": pl.String,
    "reproduced": pl.Float64,
    "std": pl.Float64,
    "n": pl.Int64,
    "oracle": pl.Float64,
    "tolerance": pl.Float64,
    "status": pl.String,
}


def summary_table(rows: Iterable[Row]) -> pl.DataFrame:
    """Return the tidy rows as a table; null where a value is undefined."""
    return pl.DataFrame([_plain(row) for row in rows], schema=_SUMMARY_TYPES)


def published_table(published: Iterable[Judged]) -> pl.DataFrame:
    """Return the printed figures beside their reproductions as a table."""
    return pl.DataFrame([_plain(figure) for figure in published], schema=_PUBLISHED_TYPES)


def interactive_data(
    rows: Iterable[Row], published: Iterable[Judged], block_maps: Sequence[dict[str, Any]]
) -> str:
    """Return ``interactive_data.json``: the whole study for programs that draw it.

    The page takes the block maps and the faults from it; its charts read the same rows from the two tables.
    """
    data = {
        "schema": SCHEMA,
        "rows": [_plain(row) for row in rows],
        "published": [_plain(figure) for figure in published],
        "faults": [asdict(fault) for fault in FAULTS],
        "block_maps": block_maps,
    }
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _plain(record: Row | Judged) -> dict[str, Any]:
    return {name: None if _is_nan(value) else value for name, value in asdict(record).items()}


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
