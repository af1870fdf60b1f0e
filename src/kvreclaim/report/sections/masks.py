"""Real keep masks: the ledger of an audit."""

from __future__ import annotations

from functools import partial

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.report.charts import masks as charts
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import BlockMaps, Control, Figure, Item, KeyNumber, Section, Table
from kvreclaim.report.wording import fixed, number, with_spread

_TABLES = {"shared": "shared table", "per_layer": "one table a layer", "per_head": "one table a head"}
_REMEDIES = {"at-eviction": "at_eviction", "by-compaction": "with_compaction", "by-packing": "with_packing"}


def _read(folder: Folder) -> pl.DataFrame:
    """Return the audit with each remedy's share of blocks: a row a file, policy and layout."""
    audit = folder.table("audit.csv")
    if audit.is_empty():
        raise InputError(
            f"{folder.path / 'audit.csv'} has no rows: pass a folder that `kvreclaim audit --out` wrote"
        )
    return audit.with_columns(
        policy=pl.col("policy").fill_null(pl.col("file")),
        at_eviction=pl.col("physical_reclaim"),
        with_compaction=(pl.col("free_blocks") + pl.col("compaction_freed_blocks")) / pl.col("blocks"),
        with_packing=pl.col("packing_physical_reclaim"),
        some_head=pl.col("live_union") / pl.col("tokens") / _tables_of(),
    )


def _tables_of() -> pl.Expr:
    """Return the number of block tables: those that `live_union` is summed over."""
    kind, layers = pl.col("block_tables"), pl.col("layers")
    return (
        pl.when(kind == "shared")
        .then(1)
        .when(kind == "per_layer")
        .then(layers)
        .otherwise(layers * pl.col("kv_heads"))
    )


def _pooled(audit: pl.DataFrame, metric: str, series: str) -> pl.DataFrame:
    """Return mean and spread of a metric over the files: one row a policy, with its series for the charts."""
    return (
        audit.group_by("policy", maintain_order=True)
        .agg(
            mean=pl.col(metric).mean(),
            std=pl.col(metric).std(ddof=0).fill_null(0.0),
            n=pl.col(metric).count().cast(pl.Int64),
        )
        .select(
            name=pl.col("policy"),
            policy=pl.lit(series),
            x=pl.lit(0.0),
            mean=pl.col("mean").cast(pl.Float64),
            std=pl.col("std").cast(pl.Float64),
            n="n",
            kind=pl.lit("measured"),
        )
        .filter(pl.col("mean").is_finite())
    )


def _ranked(audit: pl.DataFrame) -> list[str]:
    """Return the policies, best first: by reclaim in the widest table, then by the pairs packing moves."""
    widest = next(kind for kind in _TABLES if kind in set(audit["block_tables"]))
    means = (
        audit.filter(pl.col("block_tables") == widest)
        .group_by("policy")
        .agg(pl.col("physical_reclaim").mean(), pl.col("packing_moved_pairs").mean())
    )
    return means.sort("physical_reclaim", "packing_moved_pairs", "policy", descending=[True, False, False])[
        "policy"
    ].to_list()


def _in_order(rows: list[pl.DataFrame], names: list[str], headline: str) -> pl.DataFrame:
    """Return the rows by policy, best first, each with the headline series' value in words."""
    table = pl.concat(rows)
    words = {
        name: with_spread(mean, std)
        for name, mean, std in table.filter(pl.col("policy") == headline).select("name", "mean", "std").rows()
    }
    place = pl.col("name").replace_strict(
        {name: index for index, name in enumerate(names)}, return_dtype=pl.Int64
    )
    return table.sort(place, maintain_order=True).with_columns(
        words=pl.col("name").replace_strict(words, default="", return_dtype=pl.String)
    )


def _by_tables(audit: pl.DataFrame, kinds: list[str]) -> pl.DataFrame:
    pooled = [
        _pooled(audit.filter(pl.col("block_tables") == kind), "physical_reclaim", kind) for kind in kinds
    ]
    return _in_order(pooled, _ranked(audit), kinds[0])


def _by_remedy(audit: pl.DataFrame) -> pl.DataFrame:
    shared = audit.filter(pl.col("block_tables") == "shared")
    pooled = [_pooled(shared, metric, series) for series, metric in _REMEDIES.items()]
    return _in_order(pooled, _ranked(audit), "by-packing")


def _figures(audit: pl.DataFrame, seen: tuple[str, ...]) -> tuple[Item, ...]:
    sizes = [str(size) for size in audit["block_size"].unique().sort(descending=False)]
    preferred = sorted(sizes, key=lambda size: (size != "16", int(size)))
    control = Control("block-size", "Block size", tuple((size, f"B = {size}") for size in preferred))
    kinds = [kind for kind in _TABLES if kind in set(audit["block_tables"])]
    per_size = {size: audit.filter(pl.col("block_size") == int(size)) for size in preferred}
    figures = [
        Figure(
            id="masks-tables",
            title="The kind of block table decides",
            caption=(
                "Blocks freed without a copy. In a shared table a block holds a token's pairs of every "
                "layer and head, and is free only when none of them is kept. In words beside each name: "
                f"reclaim with {_TABLES[kinds[0]]}."
            ),
            drawings={
                (size,): partial(charts.by_block_tables, _by_tables(part, kinds))
                for size, part in per_size.items()
            },
            controls=(control,),
            series=tuple(kinds),
            evidence=seen,
        )
    ]
    if "shared" in kinds:
        figures.append(
            Figure(
                id="masks-remedies",
                title="In the shared table: no copy, compacting, packing",
                caption=(
                    "Compaction moves whole tokens, so it helps only where a token is dead in every head. "
                    "Packing lets each head fill blocks from its own survivors; the fullest head decides. "
                    "In words: the value with packing."
                ),
                drawings={
                    (size,): partial(charts.by_remedy, _by_remedy(part)) for size, part in per_size.items()
                },
                controls=(control,),
                series=tuple(_REMEDIES),
                evidence=seen,
            )
        )
    return tuple(figures)


def _table(audit: pl.DataFrame) -> Table:
    """Return the ledger in figures, best policy first, at the first block size of the figures."""
    size = 16 if 16 in set(audit["block_size"]) else int(audit["block_size"][0])
    part = audit.filter(pl.col("block_size") == size)
    kinds = [kind for kind in _TABLES if kind in set(part["block_tables"])]
    widest = part.filter(pl.col("block_tables") == kinds[0])
    columns = [("Logical saving", widest, "logical_saving")]
    columns += [
        (f"Reclaim, {_TABLES[kind]}", part.filter(pl.col("block_tables") == kind), "physical_reclaim")
        for kind in kinds
    ]
    columns += [("Kept by some head", widest, "some_head"), ("Stranded", widest, "stranded")]
    columns += [
        ("Reclaim, packed", widest, "with_packing"),
        ("Pairs moved to pack", widest, "packing_moved_pairs"),
    ]
    cells = [_texts(rows, metric) for _, rows, metric in columns]
    names = _ranked(part)
    return Table(
        id="masks-ledger",
        title=f"The ledger at B = {size}",
        caption=(
            "Measured: mean ± population standard deviation over the files. "
            "Best first: by reclaim in the shared table, then by the pairs that packing moves."
        ),
        columns=("Policy", *(title for title, _, _ in columns)),
        rows=tuple((name, *(column.get(name, "") for column in cells)) for name in names),
        numeric=frozenset(range(1, len(columns) + 1)),
    )


def _texts(rows: pl.DataFrame, metric: str) -> dict[str, str]:
    pooled = _pooled(rows, metric, "")
    digits = 0 if metric == "packing_moved_pairs" else 3
    return {name: fixed(mean, std, digits) for name, mean, std in pooled.select("name", "mean", "std").rows()}


def build(folder: Folder) -> Section:
    """Return the section of real keep masks."""
    audit = _read(folder)
    files = audit["file"].n_unique()
    seen = (f"measured, n = {files}",)
    names = audit["policy"].n_unique()
    tokens = " or ".join(f"{count:,}" for count in audit["tokens"].unique().sort())
    ledger = _table(audit)
    maps = folder.block_maps
    block_map = BlockMaps(
        id="masks-map",
        title="The first file, block by block",
        caption=(
            "The shared table: a cell is a token, live while any head of any layer keeps it, and darker "
            "the more of them do. Pale cells are held for a few heads' sake."
        ),
        maps=maps,
    )
    return Section(
        id="masks",
        title="Keep masks of a real model",
        prose=(
            f"Which pairs {names} policies really keep: {files} {'file' if files == 1 else 'files'} of "
            f"masks, {tokens} tokens, audited as they are. The shapes above have one layer and one head; a "
            "model has many, and each head of a head-wise method drops its own tokens.",
            "Most runtimes map one block table for all layers and heads. There a block comes free only "
            "when every head agrees on all of its tokens. A policy that frees many blocks head by head "
            "may free none in the shared table.",
            "A mask says what a policy keeps, not what a runtime does with it, nor how good the model's "
            "answers stay. The masks are of the prompts in these files; other prompts and models give "
            "other numbers.",
        ),
        items=(*_figures(audit, seen), *((block_map,) if maps else ()), ledger),
        key_numbers=_key_numbers(audit, seen[0]),
        sources=("paged-attention", "kv-compress", "kvpress"),
    )


def _key_numbers(audit: pl.DataFrame, seen: str) -> tuple[KeyNumber, ...]:
    """Return how many of the policies free less than 1 % of the blocks of a shared table."""
    shared = audit.filter((pl.col("block_tables") == "shared") & (pl.col("block_size") == 16))
    if shared.is_empty():
        return ()
    means = shared.group_by("policy").agg(pl.col("physical_reclaim").mean())["physical_reclaim"]
    nothing = int((means < 0.01).sum())
    label = "policies on a real model free less than 1 % of a shared table's blocks (B = 16)"
    return (KeyNumber(f"{number(nothing)} of {means.len()}", label, seen),)
