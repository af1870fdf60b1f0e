"""Two levels: blocks that an eviction frees, and pages that return to the GPU."""

from __future__ import annotations

import polars as pl

from kvreclaim.report.charts import pages as charts
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import Figure, Section
from kvreclaim.report.sections.parts import plain
from kvreclaim.report.wording import listed

FILE = "pages.csv"
_STATES = ("page-returned", "page-pinned", "page-full")


def build(folder: Folder) -> Section:
    """Return the section of an audit with pages."""
    table = folder.table(FILE)
    live, blocks = pl.col("live_blocks"), pl.col("blocks")
    state = pl.when(live == 0).then(pl.lit(_STATES[0])).when(live < blocks).then(pl.lit(_STATES[1]))
    rows = table.select(
        name="policy",
        policy=state.otherwise(pl.lit(_STATES[2])),
        x=pl.col("page").cast(pl.Float64),
        mean=live.cast(pl.Float64),
        std=pl.lit(None, pl.Float64),
        n=pl.lit(None, pl.Int64),
        kind=pl.lit("measured"),
    )
    per_page = max(table["blocks"].to_list(), default=0)
    returned = table.group_by("policy", maintain_order=True).agg(share=(live == 0).mean())
    some = returned.filter(pl.col("share") > 0)["policy"].to_list()
    none = returned.height - len(some)
    return Section(
        id="pages",
        title="Two levels",
        prose=(
            "Under the blocks lie pages: what the GPU's driver maps. A page holds several blocks and returns "
            "to the GPU only when the last of them is free; a free block in a held page serves this engine "
            "alone.",
            f"With {per_page} blocks a page, {none} of {returned.height} policies return no page"
            + (f"; {listed(some[:4])} {'does' if len(some) == 1 else 'do'}." if some else "."),
        ),
        items=(
            Figure(
                id="pages-map",
                title="The pages of one request after the eviction",
                caption=(
                    "A cell is a page of a shared table, first tokens on the left; a held page with free "
                    "blocks is pinned by the others. The masks are those of the first file."
                ),
                drawings=plain(charts.page_map, rows),
                series=tuple(state for state in _STATES if state in set(rows["policy"])),
                wide=True,
            ),
        ),
        sources=("paged-attention",),
    )
