"""What the measurements say, in sentences made from the tables: true of whatever tables they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import polars as pl

from kvreclaim.report.charts.rows import label
from kvreclaim.report.measurements import Measurements, pooled
from kvreclaim.report.section import KeyNumber
from kvreclaim.report.wording import counted, listed, number, percent

ENOUGH = 0.01  # share of the blocks from which on a policy is said to free memory
ENOUGH_WORDS = f"{100 * ENOUGH:g} %"
LEAST_PROMPTS = 6  # the range of five holds the true median with probability 1 - 2 / 2^5 = .94
_KINDS = {"per_layer": "one table per layer", "per_head": "one table per head"}
_REMEDIES = {
    "zero_copy": "without a copy",
    "compaction": "after compaction of whole tokens",
    "packing": "after packing each head",
}
_OUTSIDE = {
    "above": "On some prompts even the highest ratio does less harm, and stands in",
    "below": "On some prompts even the lowest ratio does more harm, and nothing is evicted instead",
}

# A GPU to put the shares in terms of memory: 90 % of 80 GiB, less the weights of Llama-3-8B in bfloat16.
POOL_GIB = 57.0
POOL = (
    "Llama-3-8B in bfloat16 leaves about 57 GiB of an 80 GiB GPU for its KV pool (90 % of the memory less "
    "15 GiB of weights)"
)


def findings(measured: Measurements) -> tuple[str, ...]:
    """Return the paragraphs of findings: at one ratio, over all of them, at matched quality, in GiB."""
    about = (at_one_ratio, over_all_ratios, by_kind, at_matched_quality, in_gib)
    return tuple(words for words in (find(measured) for find in about) if words)


def means(measured: Measurements, tables: str, metric: str, ratio: float | None = None) -> dict[str, float]:
    """Return each policy's mean of a metric at one ratio, or its highest mean at any; best policy first."""
    if tables not in measured.tables:
        return {}
    rows = pooled(measured.at(tables, ratio=ratio), metric, ("policy", "ratio"))
    highest = measured.ordered(rows.group_by("policy", maintain_order=True).agg(pl.col("mean").max()))
    return dict(highest.rows())


def at_one_ratio(measured: Measurements) -> str:
    """Say which policies free memory of a shared table without a copy, which after packing, which not."""
    free = means(measured, "shared", "physical_reclaim", measured.ratio)
    packed = means(measured, "shared", "packing_reclaim", measured.ratio)
    if not free:
        return ""
    enough = {policy: share for policy, share in free.items() if share >= ENOUGH}
    rest = [policy for policy in free if policy not in enough]
    after = {policy: packed[policy] for policy in rest if packed.get(policy, 0.0) >= ENOUGH}
    never = [policy for policy in rest if policy in packed and policy not in after]
    head = (
        f"Asked to evict {percent(measured.ratio)} of the KV pairs, with one shared block table and blocks "
        f"of {measured.block_size}, {_tally(len(enough), len(free))} at least {ENOUGH_WORDS} of the blocks "
        f"without a copy{f': {shares(enough)}' if enough else ''}."
    )
    parts = [
        f" Only after packing: {shares(after)}." if after else "",
        f" Less than {ENOUGH_WORDS} either way: {_names(never)}." if never else "",
    ]
    return head + "".join(parts) + f" These are means over {counted(measured.prompts, 'prompt')}."


def over_all_ratios(measured: Measurements) -> str:
    """Say which policies free nothing of a shared table at any ratio of the sweep."""
    free = means(measured, "shared", "physical_reclaim")
    if not free or len(measured.ratios) == 1:
        return ""
    packed = means(measured, "shared", "packing_reclaim")
    never = [policy for policy, share in free.items() if share < ENOUGH]
    sweep = f"{measured.ratios[0]:g} to {measured.ratios[-1]:g}"
    if not never:
        return f"Every policy frees at least {ENOUGH_WORDS} of the shared table at some ratio from {sweep}."
    hopeless = [policy for policy in never if policy in packed and packed[policy] < ENOUGH]
    also = f" Not even packing frees that much for {_names(hopeless)}." if hopeless else ""
    return (
        f"At no ratio of the sweep, {sweep}, {'does' if len(never) == 1 else 'do'} {_names(never)} free "
        f"at least {ENOUGH_WORDS} of the shared table without a copy.{also}"
    )


def by_kind(measured: Measurements) -> str:
    """Say how many policies free memory with narrower tables."""
    counts = []
    for kind, words in _KINDS.items():
        free = means(measured, kind, "physical_reclaim", measured.ratio)
        if free:
            enough = sum(share >= ENOUGH for share in free.values())
            counts.append(f"with {words}, {_tally(enough, len(free))} at least {ENOUGH_WORDS}")
    return f"Without a copy, at ratio {measured.ratio:g}: {'; '.join(counts)}." if counts else ""


def at_matched_quality(measured: Measurements) -> str:
    """Say which policy frees most of a shared table at equal quality, where the intervals tell them apart."""
    shared = measured.matched.filter(block_tables="shared")
    by_reclaim = shared.sort("physical_reclaim", "policy", descending=[True, False], maintain_order=True)
    told = [
        f"{words}, {_leader(rows)}"
        for remedy, words in _REMEDIES.items()
        if not (rows := by_reclaim.filter(remedy=remedy)).is_empty()
    ]
    return f"At matched quality: {'; '.join(told)}.{_censored(shared)}" if told else ""


def in_gib(measured: Measurements) -> str:
    """Say what the shares of a shared table come to on one GPU."""
    free = means(measured, "shared", "physical_reclaim", measured.ratio)
    if not free or measured.windowed:  # what its windows free, another model's layers don't
        return ""
    kept = means(measured, "shared", "retained", measured.ratio)
    most, least = max(free, key=free.__getitem__), min(free, key=free.__getitem__)
    told = [
        f"{label(policy)} promises {gib(1 - kept[policy])} and gives back {gib(free[policy])}"
        for policy in dict.fromkeys([most, least])
    ]
    return (
        f"In memory, by arithmetic: {POOL}. Full of such prompts at ratio {measured.ratio:g}, with a shared "
        f"table and without a copy, {listed(told)}. Only {measured.model} was run; the heads of another "
        "model may agree more or less."
    )


def key_numbers(measured: Measurements) -> tuple[KeyNumber, ...]:
    """Return how many policies free nothing of a shared table, and what the middle one frees in GiB."""
    free = means(measured, "shared", "physical_reclaim", measured.ratio)
    if not free:
        return ()
    at = f"measured on {measured.model}, n = {measured.prompts}, ratio {measured.ratio:g}"
    nothing = sum(share < ENOUGH for share in free.values())
    saved = 1 - median(means(measured, "shared", "retained", measured.ratio).values())
    first = (
        KeyNumber(
            f"{nothing} of {len(free)}",
            f"policies free less than {ENOUGH_WORDS} of a shared table's blocks without a copy "
            f"(B = {measured.block_size})",
            at,
        ),
    )
    if measured.windowed:
        return first
    return (
        *first,
        KeyNumber(
            f"{gib(median(free.values()))} of {gib(saved)}",
            f"come back without a copy on an 80 GiB GPU, median of {len(free)} policies",
            f"arithmetic for Llama-3-8B from shares {at}",
        ),
    )


def interval_words(measured: Measurements) -> str:
    """Return what the ends beside a median over prompts are."""
    if measured.prompts >= LEAST_PROMPTS:
        return "95 % bootstrap interval of the median"
    return f"the range over {counted(measured.prompts, 'prompt')}: too few for a 95 % interval"


def gib(share: float) -> str:
    """Return a share of the pool in GiB."""
    return f"{share * POOL_GIB:.1f} GiB"


def _leader(rows: pl.DataFrame) -> str:
    """Return who frees the most, or that intervals overlap; rows of one remedy, the highest median first."""
    first = rows.row(0, named=True)
    if first["physical_reclaim"] < ENOUGH:
        return f"no policy frees {ENOUGH_WORDS} of the shared table"
    name = label(first["policy"])
    freed = " ".join(
        [number(first["physical_reclaim"]), f"[{number(first['low'])}, {number(first['high'])}]"]
    )
    prompts = first["reached"] + first["below"] + first["above"]
    if rows.height > 1 and prompts < LEAST_PROMPTS:
        few = "1 prompt ranks" if prompts == 1 else f"{prompts} prompts rank"
        return f"{name} has the highest median, {freed}, though {few} nothing"
    rivals = rows[1:].filter(pl.col("high") >= first["low"])["policy"].to_list()
    if rivals:
        return (
            f"{name} has the highest median, {freed}, but the interval{'s' * (len(rivals) > 1)} of "
            f"{_names(rivals)} overlap{'s' * (len(rivals) == 1)} its own"
        )
    return f"{name} frees {'the most, ' if rows.height > 1 else ''}{freed} of the blocks"


def _censored(shared: pl.DataFrame) -> str:
    """Say for which policies the ratio of equal quality lies outside the sweep, and what stands in for it."""
    policies = shared.unique("policy", maintain_order=True).with_columns(
        prompts=pl.col("reached") + pl.col("below") + pl.col("above")
    )
    parts = []
    for column, words in _OUTSIDE.items():
        rows = policies.filter(pl.col(column) > 0)
        counts = [
            f"{label(policy)} ({n} of {of})"
            for policy, n, of in rows.select("policy", column, "prompts").rows()
        ]
        parts += [f" {words}: {listed(counts)}."] if counts else []
    return "".join(parts)


def _tally(count: int, of: int) -> str:
    """Return ``2 of 12 policies free``, in words that fit any two counts."""
    if of == 1:
        return "the one policy frees" if count else "the one policy does not free"
    if count in (0, of):
        return f"all {of} policies free" if count else f"none of {of} policies frees"
    return f"{count} of {of} policies free{'s' * (count == 1)}"


def _names(policies: Sequence[str]) -> str:
    return listed([label(policy) for policy in policies])


def shares(of: Mapping[str, float]) -> str:
    """Return policies with their shares, those of equal shares together: ``A and B (50 % each); C (7 %)``."""
    together: dict[str, list[str]] = {}
    for policy, share in sorted(of.items(), key=lambda pair: -pair[1]):
        together.setdefault(percent(share), []).append(policy)
    return "; ".join(
        f"{_names(policies)} ({share}{' each' if len(policies) > 1 else ''})"
        for share, policies in together.items()
    )
