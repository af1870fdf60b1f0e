"""The tables of a measurement: the ledger at one ratio, at matched quality, and in GiB of one GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from kvreclaim.report.charts.rows import label
from kvreclaim.report.measurements import REMEDIES, Measurements, pooled
from kvreclaim.report.section import Table
from kvreclaim.report.sections.measured_findings import POOL, POOL_GIB, interval_words, means
from kvreclaim.report.wording import fixed

_IN_WORDS = {"shared": "shared table", "per_layer": "a table per layer", "per_head": "a table per head"}
_DONE = {"zero_copy": "no copy", "compaction": "compacted", "packing": "packed"}


def at_one_ratio(measured: Measurements) -> Table:
    """Return reclaim, fragmentation, moves and quality at the ratio closest to a half."""
    widest, narrowest = measured.tables[0], measured.tables[-1]
    columns = [("Retained", widest, "retained", 3)]
    columns += [(f"Reclaim, {_IN_WORDS[kind]}", kind, "physical_reclaim", 3) for kind in measured.tables]
    columns += [
        (f"Fragmentation, {_IN_WORDS[narrowest]}", narrowest, "fragmentation", 3),
        (f"Reclaim packed, {_IN_WORDS[widest]}", widest, "packing_reclaim", 3),
        ("Pairs moved for it", widest, "packing_moved_pairs", 0),
        ("ΔNLL (nats)", widest, "delta_nll", 3),
        ("KL (nats)", widest, "kl", 3),
        ("Top-1 agreement", widest, "top1", 3),
    ]
    cells = [_cells(measured, kind, metric, digits) for _, kind, metric, digits in columns]
    return Table(
        id="measured-ledger",
        title=f"The ledger at ratio {measured.ratio:g}, B = {measured.block_size}",
        caption=(
            f"Mean ± population standard deviation over prompts, measured, n = {measured.prompts}. Reclaim "
            "without a copy, but for the packed one. ΔNLL, KL and top-1 agreement are against the full "
            "cache. Best first: by reclaim, then by KL."
        ),
        columns=("Policy", *(title for title, *_ in columns)),
        rows=_rows(measured.policies, cells),
        numeric=frozenset(range(1, len(columns) + 1)),
    )


def at_matched_quality(measured: Measurements) -> Table | None:
    """Return what each policy gives back at its ratio of equal quality; None where nothing was matched."""
    matched, kinds = measured.matched, measured.matched_tables
    if not kinds:
        return None
    widest = {remedy: _by_policy(matched.filter(block_tables=kinds[0], remedy=remedy)) for remedy in REMEDIES}
    any_row = _by_policy(matched)
    columns: list[tuple[str, dict[str, str]]] = [
        ("Ratio", {policy: equal_quality_ratio(measured, row) for policy, row in any_row.items()}),
        ("Retained", {policy: f"{row['retained']:.3f}" for policy, row in any_row.items()}),
    ]
    columns += [
        (f"{_IN_WORDS[kinds[0]].capitalize()}, {_DONE[remedy]}", _each(rows, _with_interval))
        for remedy, rows in widest.items()
    ]
    columns += [
        (f"{_IN_WORDS[kind].capitalize()}, no copy", _each(_by_policy(zero_copy), _with_interval))
        for kind in kinds[1:]
        if not (zero_copy := matched.filter(block_tables=kind, remedy="zero_copy")).is_empty()
    ]
    of = f" (of {size / 2**20:,.1f})" if (size := measured.prompt_bytes) else ""
    columns += [
        (f"MiB moved to pack{of}", _each(widest["packing"], _mebibytes)),
        ("Requests admitted: no copy, compacted, packed", _admitted(widest)),
    ]
    return Table(
        id="measured-matched-table",
        title="At matched quality: reclaim, and requests admitted",
        caption=(
            f"Medians over prompts, reclaim with [{interval_words(measured)}], measured. Moved: of one "
            f"prompt's cache, as {measured.model} is served. Requests admitted are arithmetic: "
            f"{_requests(measured)} that fit into what is freed of a pool of 512 blocks, "
            f"{_IN_WORDS[kinds[0]]}."
        ),
        columns=("Policy", *(title for title, _ in columns)),
        rows=_rows(
            [policy for policy in measured.policies if policy in any_row], [cells for _, cells in columns]
        ),
        numeric=frozenset(range(1, len(columns) + 1)),
    )


def on_one_gpu(measured: Measurements) -> Table | None:
    """Return the shares of the shared table in GiB of one GPU's pool.

    None without a shared table, and of a model with windows: what they free, another model's layers don't.
    """
    free = means(measured, "shared", "physical_reclaim", measured.ratio)
    if not free or measured.windowed:
        return None
    promised = {
        policy: 1 - share for policy, share in means(measured, "shared", "retained", measured.ratio).items()
    }
    every_column = [
        ("Logical saving", promised),
        ("No copy", free),
        ("Packed", means(measured, "shared", "packing_reclaim", measured.ratio)),
        ("Moved to pack", _moved(measured)),
        *_matched_shares(measured),
    ]
    columns = [(title, shares) for title, shares in every_column if shares]
    cells = [{policy: f"{POOL_GIB * share:.1f}" for policy, share in shares.items()} for _, shares in columns]
    return Table(
        id="measured-gib",
        title=f"In GiB of one GPU, ratio {measured.ratio:g}, shared table",
        caption=(
            f"Arithmetic: the shares measured on {measured.model}, times a pool. {POOL}. Moved to pack: "
            "what is copied within it. Matched: at matched quality, medians. The heads of another model may "
            "agree more or less."
        ),
        columns=("Policy", *(title for title, _ in columns)),
        rows=_rows(measured.policies, cells),
        numeric=frozenset(range(1, len(columns) + 1)),
    )


def _moved(measured: Measurements) -> dict[str, float]:
    """Return the share of the cache that packing copies at one ratio; empty where its size is unknown."""
    if measured.prompt_pairs is None:
        return {}
    pairs = means(measured, "shared", "packing_moved_pairs", measured.ratio)
    return {policy: moved / measured.prompt_pairs for policy, moved in pairs.items()}


def _matched_shares(measured: Measurements) -> list[tuple[str, dict[str, float]]]:
    """Return what each remedy frees at matched quality, and what packing copies for it, as shares."""
    shared = measured.matched.filter(block_tables="shared")
    rows = {remedy: _by_policy(shared.filter(remedy=remedy)) for remedy in REMEDIES}
    columns = [
        (
            f"Matched: {_DONE[remedy]}",
            {policy: row["physical_reclaim"] for policy, row in found.items()},
        )
        for remedy, found in rows.items()
    ]
    if (size := measured.prompt_bytes) is not None:
        packing = {policy: row["moved_bytes"] for policy, row in rows["packing"].items()}
        moved = {policy: count / size for policy, count in packing.items() if count is not None}
        columns.append(("Matched: moved to pack", moved))
    return columns


def equal_quality_ratio(measured: Measurements, row: Mapping[str, Any]) -> str:
    """Return a policy's ratio of equal quality in words, with the prompts on which it is outside the sweep.

    ``0.62``; ``≥ 0.90 (3 of 5 outside)`` where most prompts would bear more than the sweep's highest ratio,
    ``< 0.10 (3 of 5 outside)`` where they bear less than its lowest.
    """
    prompts = row["reached"] + row["below"] + row["above"]
    outside = row["below"] + row["above"]
    count = f" ({outside} of {prompts} outside)" if outside else ""
    swept = measured.frame.filter(policy=row["policy"])["ratio"].to_list()
    if 2 * row["below"] > prompts and swept:
        return f"< {min(swept):.2f}{count}"
    sign = "≥ " if 2 * row["above"] > prompts else ""
    return f"{sign}{row['ratio']:.2f}{count}"


def _rows(policies: Sequence[str], cells: Sequence[Mapping[str, str]]) -> tuple[tuple[str, ...], ...]:
    return tuple((label(policy), *(column.get(policy, "") for column in cells)) for policy in policies)


def _cells(measured: Measurements, kind: str, metric: str, digits: int) -> dict[str, str]:
    rows = pooled(measured.at(kind, ratio=measured.ratio), metric)
    return {
        policy: _together(fixed(mean, std, digits), "± ")
        for policy, mean, std in rows.select("policy", "mean", "std").rows()
    }


def _together(text: str, part: str) -> str:
    """Return a text that does not break in a part of it, so that what varies stays on one line."""
    return text.replace(part, part.replace(" ", "\N{NO-BREAK SPACE}"))


def _by_policy(matched: pl.DataFrame) -> dict[str, dict[str, Any]]:
    return {row["policy"]: row for row in matched.iter_rows(named=True)}


def _each(rows: Mapping[str, Mapping[str, Any]], words: Any) -> dict[str, str]:
    return {policy: words(row) for policy, row in rows.items()}


def _with_interval(row: Mapping[str, Any]) -> str:
    interval = f"{row['physical_reclaim']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
    return _together(interval, ", ")


def _requests(measured: Measurements) -> str:
    tokens = measured.parameters.get("request_tokens")
    return f"requests of {tokens} tokens" if isinstance(tokens, int) else "requests"


def _mebibytes(row: Mapping[str, Any]) -> str:
    return "" if row["moved_bytes"] is None else f"{row['moved_bytes'] / 2**20:,.1f}"


def _admitted(widest: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, str]:
    policies = dict.fromkeys(policy for rows in widest.values() for policy in rows)
    return {
        policy: ", ".join(
            f"{rows[policy]['admitted']:g}" if policy in rows else "–" for rows in widest.values()
        )
        for policy in policies
    }
