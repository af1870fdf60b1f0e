"""Keep masks from files: the ledger of an audit."""

from __future__ import annotations

from functools import partial

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.report.charts import masks as charts
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import BlockMaps, Control, Figure, Item, KeyNumber, Section, Table
from kvreclaim.report.wording import fixed, number, percent, with_spread

_TABLES = {"shared": "one shared table", "per_layer": "one table per layer", "per_head": "one table per head"}
_REMEDIES = {
    "at-eviction": "at_eviction",
    "after-compaction": "with_compaction",
    "by-packing": "with_packing",
}


def _read(folder: Folder) -> pl.DataFrame:
    """Return the audit with each remedy's share of blocks, policies named so that only like is pooled."""
    audit = folder.table("audit.csv")
    if audit.is_empty():
        raise InputError(
            f"{folder.path / 'audit.csv'} has no rows: pass a folder that `kvreclaim audit --out` wrote"
        )
    return _named_apart(audit).with_columns(
        at_eviction=pl.col("physical_reclaim"),
        with_compaction=(pl.col("free_blocks") + pl.col("compaction_freed_blocks")) / pl.col("blocks"),
        with_packing=pl.col("packing_physical_reclaim"),
        some_head=pl.col("live_union") / pl.col("tokens") / _tables_of(),
    )


def _named_apart(audit: pl.DataFrame) -> pl.DataFrame:
    """Return the audit with model, shape and ratio after the policy's name, as far as they differ."""
    model = pl.col("model").str.strip_chars_end("/").str.split("/").list.last()
    shape = pl.format("{} × {} × {}", "layers", "kv_heads", "tokens")
    name = pl.col("policy").fill_null(pl.col("file"))
    audit = audit.with_columns(policy=name, of_policy=name, model=model, shape=shape)
    parts = {"model": pl.col("model"), "shape": shape, "ratio": pl.format("ratio {}", "ratio")}
    differing = [part.fill_null("") for column, part in parts.items() if audit[column].n_unique() > 1]
    for part in differing:
        audit = audit.with_columns(
            policy=pl.when(part == "").then("policy").otherwise(pl.format("{}, {}", "policy", part))
        )
    return audit


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
    """Return mean and spread of a metric over a policy's masks, with the series for the charts.

    One mask has no spread: `std` is null.
    """
    return (
        audit.group_by("policy", maintain_order=True)
        .agg(
            mean=pl.col(metric).mean(),
            std=pl.when(pl.col(metric).count() > 1).then(pl.col(metric).std(ddof=0)),
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
    """Return the policies by blocks freed in the widest table, then by the pairs that packing moves."""
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
    """Return the rows in the order of the names, each with the headline series' value in words."""
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


def _figures(audit: pl.DataFrame) -> tuple[Item, ...]:
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
                f"reclaim with {_TABLES[kinds[0]]}. {_order(kinds[0])}"
            ),
            drawings={
                (size,): partial(charts.by_block_tables, _by_tables(part, kinds))
                for size, part in per_size.items()
            },
            controls=(control,),
            series=tuple(kinds),
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
            )
        )
    return tuple(figures)


def _order(widest: str) -> str:
    return f"Order: blocks freed with {_TABLES[widest]}, then pairs that packing moves."


def _table(audit: pl.DataFrame) -> Table:
    """Return the ledger in figures at the first block size of the figures."""
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
    counts = {name: f"{count:,}" for name, count in widest.group_by("policy").len().rows()}
    return Table(
        id="masks-ledger",
        title=f"The ledger at B = {size}",
        caption=(
            "Measured, counted on the masks given: mean ± population standard deviation over n masks. "
            f"{_order(kinds[0])}"
        ),
        columns=("Policy", *(title for title, _, _ in columns), "n"),
        rows=tuple((name, *(column.get(name, "") for column in cells), counts[name]) for name in names),
        numeric=frozenset(range(1, len(columns) + 2)),
    )


def _texts(rows: pl.DataFrame, metric: str) -> dict[str, str]:
    pooled = _pooled(rows, metric, "")
    digits = 0 if metric == "packing_moved_pairs" else 3
    return {name: fixed(mean, std, digits) for name, mean, std in pooled.select("name", "mean", "std").rows()}


def build(folder: Folder) -> Section:
    """Return the section of keep masks."""
    audit = _read(folder)
    maps = folder.block_maps
    block_map = BlockMaps(
        id="masks-map",
        title="The first file, block by block",
        caption=(
            "The shared table: a cell is a token, live while any head of any layer keeps it, and stronger "
            "the more of them do. Faint cells are held for a few heads' sake."
        ),
        maps=maps,
    )
    model = _the_model(audit)
    return Section(
        id="masks",
        title="Keep masks, audited" if model is None else f"Keep masks of {model}, audited",
        prose=(
            f"{_given(audit, model)} Every number is counted on the masks given. A model has many layers "
            "and heads, and each head of a head-wise method drops its own tokens.",
            "Most runtimes map one block table for all layers and heads. There a block comes free only "
            "when every head agrees on all of its tokens. A policy that frees many blocks head by head "
            "may free none in the shared table.",
            "A mask says what a policy keeps, not what a runtime does with it, nor how good the model's "
            "answers stay. The masks are those in these files; other prompts and models give other "
            "numbers.",
        ),
        items=(*_figures(audit), *((block_map,) if maps else ()), _table(audit)),
        key_numbers=_key_numbers(audit),
        sources=("paged-attention", "kv-compress", "kvpress"),
    )


def _the_model(audit: pl.DataFrame) -> str | None:
    """Return the model, where all masks name the same one."""
    models = audit["model"].unique().to_list()
    return models[0] if len(models) == 1 else None


def _given(audit: pl.DataFrame, model: str | None) -> str:
    """Return in words which masks were audited: as far as they are alike, of what shape and ratio."""
    files, names = audit["file"].n_unique(), audit["of_policy"].n_unique()
    shapes = audit.select("layers", "kv_heads", "tokens").unique().rows()
    alike = "{} layer{}, {} KV head{}, {:,} tokens" if len(shapes) == 1 else ""
    layers, heads, tokens = shapes[0]
    shape = alike.format(layers, _plural(layers), heads, _plural(heads), tokens) or f"{len(shapes)} shapes"
    ratios = audit["ratio"].unique().to_list()
    ratio = f", made to evict {percent(ratios[0])}" if len(ratios) == 1 and ratios[0] is not None else ""
    origin = "the files name no model" if audit["model"].is_null().all() else "the files name several models"
    return (
        f"Masks of {names} polic{'y' if names == 1 else 'ies'} in {files} file{_plural(files)}, {shape}"
        f"{ratio}; {origin if model is None else f'the files name {model} as the model'}."
    )


def _plural(count: int) -> str:
    return "" if count == 1 else "s"


def _key_numbers(audit: pl.DataFrame) -> tuple[KeyNumber, ...]:
    """Return how many of the policies free less than 1 % of the blocks of a shared table."""
    shared = audit.filter((pl.col("block_tables") == "shared") & (pl.col("block_size") == 16))
    if shared.is_empty():
        return ()
    groups = shared.group_by("policy").agg(pl.col("physical_reclaim").mean(), n=pl.len())
    nothing = int((groups["physical_reclaim"] < 0.01).sum())
    alike = audit["policy"].n_unique() == audit["of_policy"].n_unique()
    label = (
        f"{'policies' if alike else 'policies, told apart by model, shape and ratio,'} in the masks given "
        "free less than 1\u00a0% of a shared table's blocks (B = 16)"
    )
    sizes = sorted(set(groups["n"].to_list()))
    counts = "–".join(f"{size:,}" for size in dict.fromkeys((sizes[0], sizes[-1])))
    value = f"{number(nothing)} of {groups.height}"
    return (KeyNumber(value, label, f"measured, {counts} mask{_plural(sizes[-1])} per policy"),)
