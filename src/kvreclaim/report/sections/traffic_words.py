"""What the section "Under traffic" says in words."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from kvreclaim.report.folder import Folder
from kvreclaim.report.section import KeyNumber
from kvreclaim.report.wording import number

_SOURCES = {
    "roofline": "a roofline from data sheets, a bound",
    "fitted": "fitted to a recorded run",
    "given": "constants given",
}
_TOLD_BY = ("iterations", "seconds", "peak_running", "peak_blocks", "preemptions", "ttft_mean", "latency_p99")


def where(folder: Folder) -> Iterator[str]:
    """Yield on what the trace ran, as far as the folder says so."""
    given = folder.run.get("parameters", {})
    if "model" in given and "gpu" in given:
        times = f"{given['gpus']} × " if given.get("gpus", 1) != 1 else ""
        source = _SOURCES.get(str(given.get("step_time_source")), "not named")
        yield f"{given['model']} on {times}{given['gpu']}. A step's time: {source}."


def alike(summary: pl.DataFrame) -> Iterator[str]:
    """Yield the scenarios whose lines lie on one another."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for row in summary.iter_rows(named=True):
        groups.setdefault(tuple(row[name] for name in _TOLD_BY), []).append(row["scenario"])
    same = ["; ".join(names) for names in groups.values() if len(names) > 1]
    if same:
        yield f"The same in every number, so that their lines coincide: {' – '.join(same)}."


def at_load(folder: Folder) -> str:
    """Return at which load the folder's simulations ran, in words."""
    load = folder.run.get("parameters", {}).get("load", 1)
    return "At the trace's own load. " if load == 1 else f"At {load:g} times the trace's own load. "


def findings(folder: Folder, summary: pl.DataFrame) -> tuple[str, ...]:
    """Return whether the pool binds, of a plan with the full cache."""
    first = summary.row(0, named=True)
    if first["pool_binding"]:
        return (
            f"Here the pool binds: of {first['requests']:,} requests up to {first['peak_waiting']:,} wait, "
            f"and {first['preemptions']:,} times one is preempted.",
        )
    if folder.command == "simulate" and _evicts(folder):
        return (
            "With this eviction the pool is not binding: no request ever waits for blocks. Whether it is "
            "without, the same command without the eviction says.",
        )
    return (
        "Here the pool is not binding: no request ever waits for blocks, so giving memory back admits "
        "nobody. A faster arrival of the same requests, or a smaller pool, would change that.",
    )


def _evicts(folder: Folder) -> bool:
    given = folder.run.get("parameters", {})
    rules = (given.get("policy", "none"), given.get("evict_while_decoding", "never"))
    return rules != ("none", "never") or bool(given.get("masks") or given.get("measured"))


def key_numbers(folder: Folder, summary: pl.DataFrame) -> tuple[KeyNumber, ...]:
    """Return the capacity of a plan, or the peak of a simulation."""
    if folder.command == "plan":
        return tuple(_capacities(folder.table("capacity.csv")))
    first = summary.row(0, named=True)
    return (
        KeyNumber(
            f"{first['peak_running']:,} of {first['requests']:,}",
            f"requests of the trace run at once at the peak ({first['scenario']})",
            f"simulated, {first['iterations']:,} steps",
        ),
    )


def _capacities(table: pl.DataFrame) -> Iterator[KeyNumber]:
    """Yield the load of the full cache, then the highest of a method and of an 8-bit cache, where found."""
    full = table.row(0, named=True)
    none = {"any load": "any", "no load": "none"}.get(full["outcome"])
    evidence = f"simulated, {full['requests']:,} requests"
    rate = number_or_none(full["requests_per_second_per_gpu"]) if none is None else none
    yield KeyNumber(rate, f"requests a second and GPU meet the target, with the {full['name']}", evidence)
    others = table.slice(1).drop_nulls("requests_per_second_per_gpu")
    for kind in (pl.col("mode").is_not_null(), pl.col("mode").is_null()):
        best = others.filter(kind).sort("requests_per_second_per_gpu", descending=True, maintain_order=True)
        for row in best.head(1).iter_rows(named=True):
            method = f"at most, with a method: {row['name']}, {row['mode']}"
            label = "with an 8-bit cache, in the same bytes" if row["mode"] is None else method
            yield KeyNumber(number(row["requests_per_second_per_gpu"]), label, evidence)


def number_or_none(value: float | None) -> str:
    """Return a number in words, a dash for none."""
    return "–" if value is None else number(value)
