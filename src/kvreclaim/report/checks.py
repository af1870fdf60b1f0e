"""What a results folder must hold to be drawn: values where tables need them, block maps that are whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl

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
_AT_LEAST_ONE = ("layers", "kv_heads", "tokens", "block_size", "blocks")


def fault_of(name: str, table: pl.DataFrame, columns: Mapping[str, type[pl.DataType]]) -> str | None:
    """Return what a table lacks to be drawn, in words; None if nothing.

    Parameters
    ----------
    name
        File name of the table; one that `MAY_BE_EMPTY` does not list may be empty anywhere.
    table
        What was read.
    columns
        The columns that it must have, and their types.
    """
    missing = [column for column in columns if column not in table.columns]
    if missing:
        return f"has no column {missing[0]!r}"
    for column, kind in columns.items():
        bad = _bad(table[column], kind, needed=column not in MAY_BE_EMPTY.get(name, columns))
        if bad.any():
            row = bad.to_list().index(True)
            found = table[column][row]
            return f"has {'nothing' if found is None else found} as {column!r} in row {row + 1}"
    return None


def _bad(values: pl.Series, kind: type[pl.DataType], *, needed: bool) -> pl.Series:
    """Return for each value of a column whether it can't be used."""
    bad = values.is_null() & needed
    if kind == pl.Float64:
        bad |= ~values.fill_null(0.0).is_finite()
    if values.name in _AT_LEAST_ONE:
        bad |= values.fill_null(1) < 1
    return bad


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
