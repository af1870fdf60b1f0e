"""What was measured on a real model: `measured.csv` and `matched.csv`, pooled over prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.layout import KVGeometry
from kvreclaim.report.columns import schema
from kvreclaim.report.folder import Folder
from kvreclaim.report.matching import check_matched, check_needles

TABLES = {"shared": "One shared table", "per_layer": "One table per layer", "per_head": "One table per head"}
REMEDIES = {"zero_copy": "at-eviction", "compaction": "after-compaction", "packing": "by-packing"}
_HALF = 0.5


def _empty(name: str) -> pl.DataFrame:
    return pl.DataFrame(schema=schema(name))


@dataclass(frozen=True)
class Measurements:
    """The tables of a folder of ``kvreclaim measure``, of one model.

    Parameters
    ----------
    frame
        ``measured.csv``.
    matched
        ``matched.csv``: medians over prompts at equal quality; may be empty.
    parameters
        What the measurement was made with, of ``run.json``.
    matched_prompts
        ``matched_prompts.csv``: r* and the quality of the masks made there, by prompt; may be empty.
    needles
        ``needles.csv``: needles found, a row a task, seen and unseen, and policy; may be empty.
    """

    frame: pl.DataFrame
    matched: pl.DataFrame
    parameters: Mapping[str, Any]
    matched_prompts: pl.DataFrame = field(default_factory=lambda: _empty("matched_prompts.csv"))
    needles: pl.DataFrame = field(default_factory=lambda: _empty("needles.csv"))

    @classmethod
    def of(cls, folder: Folder) -> Measurements:
        """Read the tables of a folder.

        Raises
        ------
        InputError
            When a table is missing, the first has no rows of a known kind of block table, or is of several
            models; or when tables contradict each other.
        """
        file = folder.path / "measured.csv"
        frame = folder.table(file.name).filter(pl.col("block_tables").is_in(list(TABLES)))
        if frame.is_empty():
            raise InputError(f"{file} has no rows: pass a folder that `kvreclaim measure` wrote")
        if frame["model"].n_unique() != 1:
            raise InputError(
                f"{file} is of {frame['model'].n_unique()} models: measure each into its own --out"
            )
        written = folder.table("matched.csv")
        matched = written.filter(
            pl.col("block_tables").is_in(list(TABLES)) & pl.col("remedy").is_in(list(REMEDIES))
        )
        matched_prompts = folder.table_if_any("matched_prompts.csv")
        needles = folder.table_if_any("needles.csv")
        check_matched(folder.path, written, matched_prompts)
        check_needles(folder.path, needles)
        return cls(frame, matched, folder.run.get("parameters", {}), matched_prompts, needles)

    @property
    def model(self) -> str:
        """Name of the model; the last part where it is a path or an id of a hub."""
        return str(self.frame["model"][0]).rstrip("/").rpartition("/")[2]

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return self.frame["prompt"].n_unique()

    @cached_property
    def geometry(self) -> KVGeometry | None:
        """Shape of the model's cache, in the type that it is served in; None where ``run.json`` has none."""
        try:
            return KVGeometry(**self.parameters["geometry"])
        except (KeyError, TypeError, InputError):
            return None

    @property
    def windowed(self) -> int:
        """How many layers have a window, which gives blocks back whatever a policy does."""
        windows = self.geometry.windows if self.geometry else ()
        return sum(window is not None for window in windows)

    @property
    def prompt_pairs(self) -> int | None:
        """KV pairs of a prompt; None where prompts differ in length or the geometry is unknown."""
        lengths = self.frame["tokens"].unique().to_list()
        if self.geometry is None or len(lengths) != 1:
            return None
        return self.geometry.layers * self.geometry.kv_heads * int(lengths[0])

    @property
    def prompt_bytes(self) -> int | None:
        """Bytes of a prompt's cache, in the type that the model is served in; None as `prompt_pairs`."""
        if self.geometry is None or self.prompt_pairs is None:
            return None
        return self.prompt_pairs * self.geometry.bytes_per_pair

    @cached_property
    def ratios(self) -> tuple[float, ...]:
        """Compression ratios of the sweep, ascending."""
        return tuple(self.frame["ratio"].unique().sort())

    @property
    def ratio(self) -> float:
        """The ratio that tables and findings are about: the one closest to a half."""
        return min(self.ratios, key=lambda ratio: (abs(ratio - _HALF), ratio))

    @cached_property
    def block_sizes(self) -> tuple[int, ...]:
        """Block sizes, ascending."""
        return tuple(self.frame["block_size"].unique().sort())

    @property
    def block_size(self) -> int:
        """The block size that tables and findings are about: the first measured, as the matched."""
        return int(self.frame["block_size"][0])

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The kinds of block table, the widest first."""
        found = set(self.frame["block_tables"])
        return tuple(kind for kind in TABLES if kind in found)

    @cached_property
    def matched_tables(self) -> tuple[str, ...]:
        """The kinds of block table of `matched`, the widest first."""
        found = set(self.matched["block_tables"])
        return tuple(kind for kind in TABLES if kind in found)

    @cached_property
    def policies(self) -> tuple[str, ...]:
        """The policies, best first: by what the widest table frees without a copy, then by KL."""
        here = self.at(self.tables[0], ratio=self.ratio)
        ranked = here.group_by("policy").agg(pl.col("physical_reclaim", "kl").mean())
        ranked = ranked.sort("physical_reclaim", "kl", "policy", descending=[True, False, False])
        return tuple(dict.fromkeys([*ranked["policy"], *self.frame["policy"]]))

    def at(self, tables: str, *, ratio: float | None = None, block_size: int | None = None) -> pl.DataFrame:
        """Return the rows of a kind of block table, at one ratio or all, at one block size or the usual."""
        size = self.block_size if block_size is None else block_size
        rows = self.frame.filter((pl.col("block_tables") == tables) & (pl.col("block_size") == size))
        return rows if ratio is None else rows.filter(pl.col("ratio") == ratio)

    def ordered(self, rows: pl.DataFrame, *then: str) -> pl.DataFrame:
        """Return rows with the best policy first, and by the given columns within it."""
        places = {policy: place for place, policy in enumerate(self.policies)}
        place = pl.col("policy").replace_strict(places, default=len(places), return_dtype=pl.Int64)
        return rows.sort(place, *then, maintain_order=True)


def pooled(rows: pl.DataFrame, metric: str, by: Sequence[str] = ("policy",)) -> pl.DataFrame:
    """Return mean, population standard deviation and count of a metric over prompts, as tidy rows.

    Parameters
    ----------
    rows
        Rows of `Measurements.at`.
    metric
        A column of numbers; undefined values don't count, and groups without any have no row.
    by
        What is kept apart.

    Returns
    -------
    pl.DataFrame
        The columns `by`, mean, std, n and kind.
    """
    value = pl.when(pl.col(metric).is_finite()).then(metric)
    return (
        rows.group_by(*by, maintain_order=True)
        .agg(mean=value.mean(), std=value.std(ddof=0), n=value.count().cast(pl.Int64))
        .filter(pl.col("n") > 0)
        .with_columns(kind=pl.lit("measured"))
    )
