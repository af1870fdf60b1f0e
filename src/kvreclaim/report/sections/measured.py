"""On a real model: quality against memory, and memory at equal quality."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.report.charts import measured as charts
from kvreclaim.report.charts.rows import label
from kvreclaim.report.folder import Folder
from kvreclaim.report.measurements import REMEDIES, TABLES, Measurements, pooled
from kvreclaim.report.section import (
    BlockMaps,
    Control,
    Figure,
    Item,
    Notes,
    Section,
    Table,
)
from kvreclaim.report.sections import measured_needles as needles
from kvreclaim.report.sections import measured_tables as tables
from kvreclaim.report.sections import measured_tradeoffs as tradeoffs
from kvreclaim.report.sections.measured_findings import findings, interval_words, key_numbers
from kvreclaim.report.sections.measured_parts import by_table, joined, table_control
from kvreclaim.report.wording import counted, number


def build(folder: Folder) -> Section:
    """Return the section of a measurement on a real model."""
    measured = Measurements.of(folder)
    tokens = " or ".join(f"{count:,}" for count in measured.frame["tokens"].unique().sort())
    return Section(
        id="measured",
        title="On a real model",
        provenance=folder.made("Measured"),
        prose=(
            f"What real policies keep of the cache of {measured.model}, and what that costs: prompts of "
            f"{tokens} tokens, compressed at ratios from {measured.ratios[0]:g} to {measured.ratios[-1]:g}. "
            "Every mask is audited block by block; its harm is how far the model's next tokens move from "
            "those with the full cache.",
            f"These are masks of one model on {counted(measured.prompts, 'prompt')}; other models and texts "
            "give other numbers. The next few hundred tokens also forgive losses that a question about the "
            "prompt would not.",
            *_windows(measured),
        ),
        items=(
            Notes("What the numbers say", (*findings(measured), *needles.findings(measured))),
            *_figures(measured),
            *_block_maps(folder),
            *_tables(measured),
        ),
        key_numbers=key_numbers(measured),
        sources=("kvpress", "paged-attention", "kv-compress", "streaming-llm", "snapkv", "h2o"),
    )


def _windows(measured: Measurements) -> tuple[str, ...]:
    if not measured.windowed or measured.geometry is None:
        return ()
    return (
        f"{measured.windowed} of the model's {measured.geometry.layers} layers have a sliding window, which "
        "gives blocks back whatever the policy does; a policy decides for the others alone. The shares of "
        "blocks count the tables of both, so that a policy which frees nothing has a share too.",
    )


def _figures(measured: Measurements) -> tuple[Item, ...]:
    found = (
        tradeoffs.tradeoff(measured),
        tradeoffs.copies(measured),
        _matched(measured),
        needles.figure(measured),
        _savings(measured),
        _block_sizes(measured),
    )
    return tuple(figure for figure in found if figure is not None)


def _reclaim_over_saving(measured: Measurements, kind: str) -> pl.DataFrame:
    return joined(measured, kind, "logical_saving", "physical_reclaim")


def _savings(measured: Measurements) -> Figure:
    return Figure(
        id="measured-saving",
        title="The logical saving, and what comes back",
        caption=(
            "The dashed diagonal is memory that comes back in full. What lies below it is paid for and "
            f"unused until it is compacted or packed. B = {measured.block_size}, no copies."
        ),
        drawings=by_table(measured, charts.over_saving, _reclaim_over_saving),
        controls=(table_control(measured),),
        series=(*measured.policies, "logical-saving"),
    )


# Over the block size


def _block_sizes(measured: Measurements) -> Figure | None:
    if len(measured.block_sizes) == 1:
        return None
    return Figure(
        id="measured-block-size",
        title=f"Over the block size, at ratio {measured.ratio:g}",
        caption="The dashed line is the logical saving, the mean of all policies. No copies.",
        drawings=by_table(measured, charts.over_block_size, _reclaim_over_block_size),
        controls=(table_control(measured),),
        series=(*measured.policies, "logical-saving"),
    )


def _reclaim_over_block_size(measured: Measurements, kind: str) -> pl.DataFrame:
    parts = []
    for size in measured.block_sizes:
        rows = measured.at(kind, ratio=measured.ratio, block_size=size)
        saved = rows.with_columns(policy=pl.lit("logical-saving"), saved=1 - pl.col("retained"))
        parts += [
            found.with_columns(x=pl.lit(float(size)))
            for found in (pooled(rows, "physical_reclaim"), pooled(saved, "saved"))
        ]
    return measured.ordered(pl.concat(parts), "x")


# At equal quality


def _matched(measured: Measurements) -> Figure | None:
    kinds = measured.matched_tables
    if not kinds:
        return None
    return Figure(
        id="measured-matched",
        title="At matched quality: what each policy gives back",
        caption=(
            f"Each policy evicts as much as the target allows, prompt by prompt: {_target(measured)}. Beside "
            "its name, that ratio; bars are medians over prompts. Outside the sweep it is a bound: the "
            "highest ratio stands in where more would do, and nothing is evicted where the lowest is too "
            f"much.{_off_target(measured)} B = {measured.block_size}."
        ),
        drawings={
            (kind,): partial(charts.at_matched_quality, _matched_rows(measured, kind)) for kind in kinds
        },
        controls=(Control("block-tables", "Block tables", tuple((kind, TABLES[kind]) for kind in kinds)),),
        series=tuple(REMEDIES.values()),
        spread=f"[{interval_words(measured)}]",
        wide=True,
    )


def _off_target(measured: Measurements) -> str:
    """Return how far the harm of the masks made at r* is from the target, where r* lies inside the sweep."""
    inside = measured.matched_prompts.filter(reached="inside")
    if inside.is_empty():
        return ""
    off = (inside["kl"] / inside["target_kl"]).to_list()
    return f" The masks' own KL is {min(off):.2f} to {max(off):.2f} times the target."


def _matched_rows(measured: Measurements, kind: str) -> pl.DataFrame:
    """Return the matched table of one kind of block table as rows to draw, best policy first."""
    found = measured.matched.filter(block_tables=kind)
    lane = pl.col("remedy").replace_strict({remedy: place for place, remedy in enumerate(REMEDIES)})
    found = measured.ordered(found.with_columns(lane=lane), "lane")
    words = [f"ratio {tables.equal_quality_ratio(measured, row)}" for row in found.iter_rows(named=True)]
    return found.select(
        name="policy",
        words=pl.Series(words, dtype=pl.String),
        policy=pl.col("remedy").replace_strict(REMEDIES),
        x=pl.lit(0.0),
        mean="physical_reclaim",
        low="low",
        high="high",
        std=pl.lit(0.0),
        n=pl.col("reached") + pl.col("below") + pl.col("above"),
        kind=pl.lit("measured"),
    )


def _target(measured: Measurements) -> str:
    """Return the quality to match in words."""
    kl = number(float(measured.matched["target_kl"].median() or 0.0))  # type: ignore[arg-type]  # polars types a median loosely
    target = measured.parameters.get("target")
    if isinstance(target, Mapping) and {"policy", "ratio"} <= set(target):
        return f"the KL of {label(str(target['policy']))} at ratio {target['ratio']} (median {kl} nats)"
    return f"a KL of {kl} nats"


# Block maps, tables


def _block_maps(folder: Folder) -> tuple[Item, ...]:
    maps = tuple({**found, "title": label(str(found["title"]))} for found in folder.block_maps)
    if not maps:
        return ()
    views = tuple(dict.fromkeys(str(found["view"]) for found in maps if "view" in found))
    policies = len(dict.fromkeys(found["title"] for found in maps))
    if views and [found.get("view") for found in maps] != [*views] * policies:
        raise InputError(
            f"{folder.path / 'interactive_data.json'} holds block maps whose views differ from policy to "
            "policy: run the command again"
        )
    return (
        BlockMaps(
            id="measured-map",
            title="The masks of one prompt, block by block",
            caption=(
                "All layers and heads are what a shared table sees: a cell is a token, live while any of "
                "them keeps it, and stronger the more of them do. One layer is what a table of its own would "
                "see, one head likewise."
            ),
            maps=maps,
            views=views,
        ),
    )


def _tables(measured: Measurements) -> tuple[Table, ...]:
    found = (tables.at_one_ratio(measured), tables.at_matched_quality(measured), tables.on_one_gpu(measured))
    return (*(table for table in found if table is not None), *needles.tables(measured))
