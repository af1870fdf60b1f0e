"""What evicting at the end of a prefill leaves and frees: closed forms, recorded masks, measured tables.

Each gives an `Eviction` with two shares: the tokens that survive, and the blocks that die whole. In mode
``pack`` the survivors are those of the fullest head of the table, as packing needs.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.keep import load_keep_masks
from kvreclaim.layout import SHARED, BlockLayout
from kvreclaim.ledger import Ledger, audit
from kvreclaim.serving.eviction import SINKS, Eviction
from kvreclaim.validate import check_ratio

Counts = NDArray[np.int64]


def _streaming_llm(length: Counts, kept: Counts, block_size: int) -> Counts:
    """Return the blocks between the sinks and the window (see `bounds.streaming_llm_freed`)."""
    sinks = np.minimum(SINKS, kept)
    freed: Counts = (length - (kept - sinks)) // block_size + -sinks // block_size
    return freed


def _scattered(length: Counts, kept: Counts, block_size: int) -> Counts:
    """Return the blocks that die when each token does with the same chance (`bounds.independent_reclaim`)."""
    share = (length - kept) / np.maximum(length, 1)
    freed: Counts = np.floor(length // block_size * share**block_size).astype(np.int64)
    return freed


def _block_wise(length: Counts, kept: Counts, block_size: int) -> Counts:
    """Return the blocks that die when whole blocks are evicted: all that the number of tokens allows."""
    freed: Counts = (length - kept) // block_size
    return freed


def _per_head(length: Counts, kept: Counts, block_size: int) -> Counts:  # noqa: ARG001  # one signature for all
    """Return 0: heads that choose for themselves leave no token dead in all of them."""
    return np.zeros_like(length)


CLOSED_FORMS: dict[str, Callable[[Counts, Counts, int], Counts]] = {
    "streaming-llm": _streaming_llm,
    "scattered": _scattered,
    "block-wise": _block_wise,
    "per-head": _per_head,
}


# Where their dead slots lie while decoding; of others nothing is known.
DYING_OF = {"streaming-llm": "before window", "block-wise": "whole", "per-head": "scattered"}


def closed_form(policy: str, ratio: float, mode: str) -> Eviction:
    """Return the eviction of a policy whose freed blocks have a closed form.

    Parameters
    ----------
    policy
        ``streaming-llm`` (4 sinks and a window), ``scattered`` (every token alike), ``block-wise``, or
        ``per-head`` (SnapKV, H2O and kin in a shared table: nothing).
    ratio
        Share of the input's tokens that is evicted.
    mode
        See `Eviction`.

    Raises
    ------
    InputError
        If the policy or the mode is unknown, or the ratio out of range.
    """
    if policy not in CLOSED_FORMS:
        raise InputError(f"unknown policy {policy!r}: pass one of {', '.join(CLOSED_FORMS)}")
    return Eviction(mode, _keeping(1 - check_ratio(ratio)), CLOSED_FORMS[policy])


def from_shares(evicted: float, freed: float, packed: float, mode: str) -> Eviction:
    """Return an eviction of given shares of the tokens and blocks, at any length.

    Parameters
    ----------
    evicted
        Share of the KV pairs evicted.
    freed
        Share of the blocks that die whole, in mode ``free``.
    packed
        Share of the blocks that packing frees, in mode ``pack``.
    mode
        See `Eviction`.

    Raises
    ------
    InputError
        If a share is out of range.
    """
    freed, evicted, packed = check_ratio(freed), check_ratio(evicted), check_ratio(packed)
    left = 1 - (packed if mode == "pack" else max(evicted, freed))

    def whole(length: Counts, kept: Counts, block_size: int) -> Counts:  # noqa: ARG001  # one signature for all
        found: Counts = np.floor(freed * -(-length // block_size)).astype(np.int64)
        return found

    return Eviction(mode, _keeping(left), whole)


def from_masks(file: str | PathLike[str], block_size: int, mode: str) -> Eviction:
    """Return the eviction that recorded keep masks show in a shared table, in the mean over a file's masks.

    Raises
    ------
    InputError
        If the file holds no keep masks.
    """
    layout = BlockLayout(block_size, SHARED)
    ledgers = [audit(mask, layout) for mask in load_keep_masks(file)]

    def mean(share: Callable[[Ledger], float]) -> float:
        return float(np.mean([share(ledger) for ledger in ledgers]))

    return from_shares(
        mean(lambda ledger: ledger.logical_saving),
        mean(lambda ledger: ledger.physical_reclaim),
        mean(lambda ledger: ledger.packing.physical_reclaim),
        mode,
    )


def from_measured(
    folder: str | PathLike[str], policy: str, ratio: float, block_size: int, mode: str
) -> Eviction:
    """Return the eviction of a policy as `kvreclaim measure` found it, in the mean over prompts.

    Parameters
    ----------
    folder
        A results folder of ``kvreclaim measure``, or its ``measured.csv``.
    policy, ratio, block_size
        Which rows: those of a shared table.
    mode
        See `Eviction`.

    Raises
    ------
    InputError
        If there is no such table or row.
    """
    path = Path(folder)
    file = path / "measured.csv" if path.is_dir() else path
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        shared = [row for row in rows if row["block_tables"] == SHARED]
        found = [
            row
            for row in shared
            if row["policy"] == policy
            and float(row["ratio"]) == ratio
            and int(row["block_size"]) == block_size
        ]
        shares = [_mean(found, column) for column in ("retained", "physical_reclaim", "packing_reclaim")]
    except (OSError, ValueError, KeyError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: is no table of `kvreclaim measure`; pass its results folder") from error
    if not found:
        known = sorted({f"{row['policy']} at {row['ratio']}, B = {row['block_size']}" for row in shared})
        shown = "; ".join(known[:8]) or "none"
        raise InputError(f"{file}: has no {policy} at {ratio:g}, B = {block_size}; in shared tables: {shown}")
    retained, freed, packed = shares
    return from_shares(1 - retained, freed, packed, mode)


def _mean(rows: Sequence[dict[str, str]], column: str) -> float:
    return float(np.mean([float(row[column]) for row in rows])) if rows else 0.0


def _keeping(share: float) -> Callable[[Counts], Counts]:
    """Return survivors of an input: the evicted are rounded, as in the study."""

    def survivors(length: Counts) -> Counts:
        evicted: Counts = np.rint(length * (1 - share)).astype(np.int64)
        return length - evicted

    return survivors
