"""What ``kvreclaim plan`` says under its table: what binds, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvreclaim.cli.output import printable
from kvreclaim.validate import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvreclaim.serving.capacity import Target
    from kvreclaim.serving.plan import Variant

_AT_LOAD = {
    "pool": "the pool binds",
    "max_num_seqs": "the pool is not binding, max_num_seqs is",
    "compute": "the pool is not binding, the GPU's time is",
    "nothing": "the pool is not binding, nor is anything else",
}
_AT_CAPACITY = {
    "pool": "memory: with a larger pool a higher load would meet the target",
    "max_num_seqs": "not the pool but max_num_seqs: raise --max-num-seqs first",
    "pool and max_num_seqs": "both the pool and max_num_seqs: raise --max-num-seqs, and give memory back",
    "compute": "not the pool but the GPU's time",
}
_MORE = 1.02  # times the full cache's load that are more than the search is coarse


def remarks(found: list[Variant], target: Target, part: bool) -> Iterator[str]:
    """Yield what follows from the rows, the full cache's first.

    Parameters
    ----------
    found
        The rows.
    target
        What had to be met.
    part
        Whether the trace has more requests than were taken.
    """
    full = found[0]
    trace = full.at_load.trace
    if part:
        yield (
            f"Of the trace the first {counted(trace.requests, 'request')} only: with another number of them "
            "(--requests; 0: all) the load moves."
        )
    load = full.scenario.load
    yield f"At load {load:g}, as given: {_AT_LOAD[full.binds]}."
    yield from _refusals(found)
    if full.carried.outcome == "found":
        yield f"At the full cache's capacity what binds is {_AT_CAPACITY[full.carried.binds]}."
        if full.carried.binds == "compute":
            yield f"To carry more: {_time_helps(full, target)}."
    elif full.carried.outcome == "no load":
        yield from _no_load(full, target)
    else:
        yield "Even if all requests came at once, the full cache would meet the target: nothing to gain here."
    yield from _gains(found)
    yield from _from_load(full)
    for note in trace.notes:
        yield printable(note)


def _refusals(found: list[Variant]) -> Iterator[str]:
    for variant in found:
        totals = variant.at_load.totals
        if totals.refused:
            first, _ = totals.first_refused[0]
            yield (
                f"{printable(variant.title)}: the pool is too small, {counted(totals.refused, 'request')} "
                f"longer than it and refused, request {first} the first; so no load meets the target, in any "
                "row that refuses some."
            )
            return


def _no_load(full: Variant, target: Target) -> Iterator[str]:
    if full.at_load.totals.refused:
        return
    found = full.carried.missed.summary()
    for name, words in (("ttft_p99", "TTFT p99"), ("latency_p99", "latency p99")):
        limit = getattr(target, name)
        if limit is not None and found[name] > limit:
            yield (
                f"No load meets the target: at the lowest tried the {words} is {found[name]:,.3g} s, "
                f"{limit:g} s are wanted."
            )
    if full.carried.binds == "compute":
        yield f"No memory helps there. To change: {_time_helps(full, target)}."
    else:
        yield f"What binds there is {_AT_CAPACITY[full.carried.binds]}."


def _time_helps(full: Variant, target: Target) -> str:
    """Return what to change where steps take too long."""
    found = full.carried.missed.summary()
    prefill = target.ttft_p99 is not None and found["ttft_p99"] > target.ttft_p99
    steps = "prefill" if prefill else "a step"
    return f"a faster GPU or more of them ({steps} takes too long), a smaller model, or a longer target"


def _gains(found: list[Variant]) -> Iterator[str]:
    full = found[0].carried
    if full.outcome == "any load":
        return
    raised = [variant for variant in found[1:] if _gain(variant, found[0]) > _MORE]
    for what, rows in (
        ("Giving memory back", [variant for variant in raised if variant.mode]),
        ("An 8-bit cache", [variant for variant in raised if not variant.mode]),
    ):
        if not rows:
            yield f"{what} raises no load here."
            continue
        best = max(rows, key=lambda variant: _gain(variant, found[0]))
        also = [
            variant.title for variant in rows if _gain(variant, found[0]) * _MORE >= _gain(best, found[0])
        ]
        names = printable("; ".join(also))
        why = ", for steps read fewer bytes" if full.binds == "compute" else ""
        yield f"{what} raises the load most with {names}: {_amount(best, found[0])}{why}."


def _gain(variant: Variant, full: Variant) -> float:
    """Return how many times the full cache's load it is; infinity where that one has none."""
    found, base = variant.carried, full.carried
    if found.outcome == "no load" or base.outcome == "any load":
        return 0.0
    if found.load is None or base.load is None:
        return float("inf")
    return found.load / base.load


def _amount(variant: Variant, full: Variant) -> str:
    gain = _gain(variant, full)
    if variant.carried.load is None:
        return "any load meets the target"
    if gain == float("inf"):
        return f"load {variant.carried.load:.3g}, where the full cache has none"
    return f"{gain - 1:+.0%}"


def _from_load(full: Variant) -> Iterator[str]:
    first = full.pool_binds_from
    if first is None:
        yield "With the full cache no request waits for blocks at any load: memory given back admits nobody."
    elif first == 0:
        yield "With the full cache requests lack blocks at any load."
    else:
        yield (
            f"With the full cache requests wait for blocks from load {first:.3g} on: there memory begins to "
            "matter."
        )
