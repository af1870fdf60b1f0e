"""What the numbers of one row owe each other: parts are at most their wholes, shares are of their counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from kvreclaim.statistics import wilson_interval

Row = Mapping[str, Any]

# Numbers, added up, that are at most another. Numbers are written with seven digits: the order survives that.
AT_MOST: Mapping[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "audit.csv": (
        (("free_blocks",), "blocks"),
        (("free_blocks", "compaction_freed_blocks"), "blocks"),
    ),
    "pages.csv": ((("live_blocks",), "blocks"),),
    "matched.csv": ((("low",), "physical_reclaim"), (("physical_reclaim",), "high")),
    "needles.csv": ((("solved",), "full_solved"), (("full_solved",), "trials")),
    "runs.csv": tuple(
        pair
        for mask in ("kl_asked", "kl_effective")
        for pair in (((f"{mask}_low",), mask), ((mask,), f"{mask}_high"))
    ),
}

# A share, and the counts that it is of; nothing where the whole is 0.
SHARES: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "audit.csv": (("physical_reclaim", "free_blocks", "blocks"),),
    "needles.csv": (("share", "solved", "full_solved"),),
}

# The two ends of a share's 95 % Wilson interval, and the counts.
INTERVALS: Mapping[str, tuple[tuple[str, str, str, str], ...]] = {
    "needles.csv": (("low", "high", "solved", "full_solved"),),
}

ROUNDING = 1e-6


def agree(found: float | None, wanted: float | None) -> bool:
    """Tell whether two numbers are one but for the seven digits they are written with; None is None."""
    if found is None or wanted is None:
        return found is wanted
    return abs(found - wanted) <= ROUNDING * max(1.0, abs(wanted))


def contradiction(name: str, table: pl.DataFrame) -> str | None:
    """Return in words the first row of a table whose numbers contradict each other; None if there is none."""
    if not any(name in relations for relations in (AT_MOST, SHARES, INTERVALS)):
        return None
    for place, row in enumerate(table.iter_rows(named=True), start=1):
        if fault := _too_much(name, row) or _no_share(name, row):
            return f"{fault} in row {place}"
    return None


def _too_much(name: str, row: Row) -> str | None:
    for parts, whole in AT_MOST.get(name, ()):
        values, most = [row.get(part) for part in parts], row.get(whole)
        known = [value for value in values if value is not None]
        if most is not None and known and sum(known) > most:
            return f"has {sum(known)} as {' and '.join(map(repr, parts))}, and {most} as {whole!r}"
    return None


def _no_share(name: str, row: Row) -> str | None:
    for share, part, whole in SHARES.get(name, ()):
        wanted = row[part] / row[whole] if row[whole] else None
        if not agree(row[share], wanted):
            return f"has {_shown(row[share])} as {share!r}, where {part!r} of {whole!r} is {_shown(wanted)}"
    for low, high, part, whole in INTERVALS.get(name, ()):
        ends = wilson_interval(row[part], row[whole]) if row[whole] else (None, None)
        for column, end in zip((low, high), ends, strict=True):
            if not agree(row[column], end):
                return (
                    f"has {_shown(row[column])} as {column!r}, where the interval of {row[part]} of "
                    f"{row[whole]} has {_shown(end)}"
                )
    return None


def _shown(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.7g}"
