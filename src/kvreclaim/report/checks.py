"""What a results folder must hold to be drawn: values where tables need them, block maps that are whole."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from kvreclaim.report.columns import COLUMNS, KEYS, OPTIONAL, Column
from kvreclaim.report.relations import contradiction
from kvreclaim.results import utf8

# The columns that may be empty, by table: what is unknown of a mask, or undefined of a row.
MAY_BE_EMPTY: Mapping[str, frozenset[str]] = {
    "results_summary.csv": frozenset({"mean", "std"}),
    "published.csv": frozenset({"reproduced", "std", "n", "oracle", "tolerance"}),
    "audit.csv": frozenset({"policy", "model", "ratio", "stranded"}),
    "measured.csv": frozenset({"reclaim_efficiency", "fragmentation", "stranded", "kl", "delta_nll", "top1"}),
    "matched.csv": frozenset({"moved_bytes"}),
    "matched_prompts.csv": frozenset(),
    "needles.csv": frozenset({"share", "low", "high", "retained", "needle_retained"}),
}


def cut_short(content: bytes) -> str | None:
    """Return in words where a CSV table breaks off in a row; None if it does not.

    Every line that a command writes has an end, and every row as many fields as the first one.
    """
    if not content.endswith(b"\n"):
        return "breaks off in its last row"
    rows = csv.reader(io.StringIO(content.decode(errors="replace"), newline=""))
    wanted = len(next(rows, ()))
    for number, row in enumerate(rows, start=1):
        if row and len(row) != wanted:
            return f"has {len(row)} values in row {number}, and {wanted} columns"
    return None


def fault_of(name: str, table: pl.DataFrame) -> str | None:
    """Return what a table lacks to be drawn, in words; None if nothing.

    Parameters
    ----------
    name
        File name of the table; one that `MAY_BE_EMPTY` does not list may be empty anywhere.
    table
        What was read.
    """
    wanted = COLUMNS[name]
    missing = [column for column in wanted if column not in table.columns]
    if missing:
        return f"has no column {missing[0]!r}"
    there = {key: column for key, column in OPTIONAL.get(name, {}).items() if key in table.columns}
    for key, column in {**wanted, **there}.items():
        needed = key in wanted and key not in MAY_BE_EMPTY.get(name, wanted)
        bad = _bad(table[key], column, needed=needed)
        if bad.any():
            row = bad.to_list().index(True)
            found = table[key][row]
            range_ = f", where numbers are {column.range}" if found is not None and column.range else ""
            return f"has {'nothing' if found is None else found} as {key!r} in row {row + 1}{range_}"
    return _twice(table, KEYS.get(name, ())) or contradiction(name, table)


def _bad(values: pl.Series, column: Column, *, needed: bool) -> pl.Series:
    """Return for each value of a column whether it can't be used."""
    bad = values.is_null() & needed
    if column.kind == pl.Float64:
        bad |= ~values.fill_null(0.0).is_finite()
    if column.low is not None:
        bad |= (values < column.low).fill_null(value=False)
    if column.high is not None:
        bad |= (values > column.high).fill_null(value=False)
    return bad


def _twice(table: pl.DataFrame, key: tuple[str, ...]) -> str | None:
    """Return in words which row there is twice, by what names a row; None if there is none."""
    if not key:
        return None
    again = table.select(~pl.struct(key).is_first_distinct()).to_series()
    if not again.any():
        return None
    row = again.to_list().index(True)
    named = ", ".join(f"{column} {table[column][row]}" for column in key)
    return f"has two rows of {named}, the second in row {row + 1}"


def parse(text: str) -> Any:
    """Return what JSON text says, half characters as escapes; ValueError where a number is not finite."""
    return _whole(json.loads(text, parse_constant=_finite, parse_float=_finite))


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError(f"{text} is no finite number")
    return number


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else utf8(value).decode()
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def check_run(run: Mapping[str, Any]) -> None:
    """Raise ValueError where parts of ``run.json`` are not of the kind that the page prints."""
    shapes = {"command": str, "kinds": list, "parameters": dict, "versions": dict, "created": str}
    if any(not isinstance(run.get(key, shape()), shape) for key, shape in shapes.items()):
        raise ValueError("a part is of another kind")
    rows = run.get("rows", {})
    if not isinstance(rows, dict) or not all(type(count) is int for count in rows.values()):
        raise ValueError("rows are whole numbers")
    texts = [*run.get("kinds", ()), *run.get("versions", {}).values()]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("kinds and versions are texts")


def check_block_map(block_map: Mapping[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError where the page could not draw a block map."""
    tokens, block_size = block_map["tokens"], block_map["block_size"]
    if not all(type(size) is int and size > 0 for size in (tokens, block_size)):
        raise ValueError("tokens and block_size are not whole numbers of at least 1")
    slots = -(-tokens // block_size) * block_size
    if not block_map["frames"] or not isinstance(block_map["title"], str):
        raise ValueError("title and frames are needed")
    for frame in block_map["frames"]:
        if len(bytes.fromhex(frame["keep"])) != (tokens + 7) // 8:
            raise ValueError(f"keep is not {tokens} bits")
        share = frame.get("share")
        if share is not None and (len(share) != tokens or int(share, 16) < 0):
            raise ValueError(f"share is not {tokens} hex digits")
        moves = frame["compaction"]["moves"]
        if not all(len(move) == 2 and all(0 <= slot < slots for slot in move) for move in moves):
            raise ValueError("a move is no pair of slots of the block map")
        for key in ("compression_ratio", "free_blocks", "blocks", "dead_tokens_held"):
            if not isinstance(frame[key], int | float):
                raise ValueError(f"{key} is not a number")
        if not isinstance(frame.get("stranded"), int | float | None):
            raise ValueError("stranded is not a number")
        if not isinstance(frame["compaction"]["freed_blocks"], int):
            raise ValueError("freed_blocks is not a number")
