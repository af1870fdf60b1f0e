"""Compaction: the memory that only a copy frees, and its price."""

from __future__ import annotations

import polars as pl

from kvreclaim.report.charts import compaction as charts
from kvreclaim.report.charts.rows import only
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import Figure, Item, KeyNumber, Section
from kvreclaim.report.sections.parts import LINEAR_FIRST, LOG_FIRST, faults, plain, scaled
from kvreclaim.report.summary import Summary

EXPERIMENTS = ("compaction",)
_PATTERNS = ("random", "clustered-hole", "block-wise")


def _every_pattern(ratios: pl.DataFrame) -> pl.DataFrame:
    """Return the ratios with a row without a mean for each pattern that has none: it needs no copy."""
    absent = [pattern for pattern in _PATTERNS if pattern not in set(ratios["policy"])]
    empty = pl.DataFrame({"policy": absent, "metric": "slots_per_move", "kind": "simulated", "x": 0.5})
    return pl.concat([ratios, empty.cast({"policy": pl.String})], how="diagonal")


def _bounds_named(table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with the kind of a bound said in words: it is no expectation."""
    bound = pl.col("metric").str.extract("_(lower|upper)_bound$")
    return table.with_columns(
        kind=pl.when(bound.is_null()).then("kind").otherwise(pl.format("{}, {} bound", "kind", bound))
    )


def _rows(summary: Summary, *metrics: str) -> pl.DataFrame:
    found = summary.rows("compaction", *metrics)
    return _bounds_named(only(found, _PATTERNS))


def _figures(summary: Summary) -> tuple[Item, ...]:
    sources = only(summary.rows("compaction", *charts.SOURCES), _PATTERNS, "simulated")
    moves = _rows(summary, "moved_tokens", "moved_tokens_lower_bound", "moved_bytes")
    ratios = _rows(summary, *charts.RATIOS)
    return (
        Figure(
            id="compaction-sources",
            title="Where free blocks come from",
            caption=(
                "Of 512 blocks, half of the tokens dropped: "
                "blocks free at eviction, then those that compaction adds."
            ),
            drawings=plain(charts.sources, sources),
            series=tuple(charts.SOURCES.values()),
        ),
        Figure(
            id="compaction-slots-per-move",
            title="What one moved token buys",
            caption=(
                "Token slots freed for each token copied. For one clustered hole the mean of the runs' "
                "ratios is inflated by runs that move one or two tokens; the ratio of the means is "
                "steadier. Crediting compaction with blocks that were already free makes it look hundreds "
                "of times better."
            ),
            drawings=scaled(charts.slots_per_move, _every_pattern(ratios)),
            controls=(LOG_FIRST,),
            series=tuple(dict.fromkeys(charts.RATIOS.values())),
        ),
        Figure(
            id="compaction-moves",
            title="Tokens moved to reach the fewest blocks",
            caption=(
                "With their bytes in Llama-3-8B's geometry in bfloat16 "
                "(all layers and heads of a token). The hollow diamond is a lower bound on the mean."
            ),
            drawings=scaled(charts.moved_tokens, moves),
            controls=(LINEAR_FIRST,),
            series=_PATTERNS,
        ),
    )


def build(folder: Folder) -> Section:
    """Return the section of compaction's cost."""
    summary = Summary.of(folder)
    moved = summary.quantity("compaction", "random", "moved_tokens", 0.5)
    ratio = summary.quantity("compaction", "random", "slots_per_move", 0.5)
    hole = summary.quantity("compaction", "clustered-hole", "slots_per_move", 0.5)
    means = summary.quantity("compaction", "clustered-hole", "slots_per_move_ratio_of_means", 0.5)
    return Section(
        id="compaction",
        title="What a copy buys",
        prose=(
            "Compaction moves survivors of the emptiest blocks into the holes of the fullest, until they "
            "fill as few blocks as they can. The plan here is optimal: no plan frees as many blocks with "
            "fewer moves.",
            f"After random eviction of half of the tokens it moves {moved.text} tokens and frees "
            f"{ratio.text} token slots for each. One clustered hole needs only its edges mended: "
            f"{hole.text} slots per move as the mean over runs, {means.text} as the ratio of the "
            "means. Block-wise eviction needs no copy, so it has no ratio.",
            "Counted are tokens and bytes. Block tables, position metadata, kernels that wait, and the "
            "rotation of moved keys cost more on top; none of it is simulated.",
        ),
        items=(*_figures(summary), *faults(folder, "compaction")),
        key_numbers=(
            KeyNumber(
                moved.text,
                "tokens have to move before scattered survivors fill half of the pool",
                moved.evidence,
            ),
        ),
        sources=("study", "kv-compress", "vattention"),
    )
