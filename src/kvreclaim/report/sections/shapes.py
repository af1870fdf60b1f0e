"""Realistic shapes at a matched budget: StreamingLLM, SnapKV, H2O and random eviction."""

from __future__ import annotations

from kvreclaim.report.charts import shapes as charts
from kvreclaim.report.charts.rows import only
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import Figure, Item, KeyNumber, Section
from kvreclaim.report.sections.parts import faults, plain
from kvreclaim.report.summary import Summary, at
from kvreclaim.report.wording import number, percent

EXPERIMENTS = ("shapes", "shapes_retained", "snapkv_cluster")
POLICIES = ("streaming-llm", "snapkv", "h2o", "random")
_DIAMONDS = "Hollow diamonds are closed forms."


def _figures(summary: Summary) -> tuple[Item, ...]:
    reclaim = summary.with_rare_counts("shapes", only(summary.rows("shapes", "physical_reclaim"), POLICIES))
    here = at(reclaim, 16)
    retained = only(summary.rows("shapes_retained", "physical_reclaim"), POLICIES)
    retained = summary.with_rare_counts("shapes_retained", retained)
    cluster = summary.rows("snapkv_cluster", "physical_reclaim")
    cost = only(
        at(summary.rows("shapes", "physical_reclaim", "compacted_reclaim", "moved_fraction"), 16),
        POLICIES,
        "simulated",
    )
    return (
        Figure(
            id="shapes-reclaim",
            title="Half of the tokens dropped, B = 16: what comes free without a copy",
            caption=(
                f"Bars are means, thin lines one standard deviation. {_DIAMONDS} Where few blocks come "
                "free in all runs together, their count and its 95 % interval stand in place of a mean."
            ),
            drawings=plain(charts.by_policy, here),
            series=POLICIES,
        ),
        Figure(
            id="shapes-block-size",
            title="Over the block size",
            caption=(
                "The sequence grows with the block, always 50 blocks, so the curves isolate the shape "
                "from the length. Scattered survivors hold more as blocks grow; a window does not. "
                f"{_DIAMONDS}"
            ),
            drawings=plain(charts.over_block_size, reclaim),
            series=POLICIES,
        ),
        Figure(
            id="shapes-retained",
            title="Over the share of tokens retained, B = 16",
            caption=f"The dashed line is the logical saving: the most any mask could free. {_DIAMONDS}",
            drawings=plain(charts.over_retained, retained),
            series=(*POLICIES, "logical-saving"),
        ),
        Figure(
            id="shapes-cluster-length",
            title="SnapKV depends on the length of its clusters",
            caption=(
                "B = 16, half of the tokens kept. Clusters of one token are H2O's scatter; long clusters "
                "approach a window. One number for SnapKV is a point on this curve. Hollow diamonds are an "
                "estimate for long sequences, a little high in these short ones."
            ),
            drawings=plain(charts.over_cluster_length, cluster),
            series=("snapkv",),
        ),
        Figure(
            id="shapes-compaction",
            title="What compaction could add, and what it moves",
            caption=(
                "With every survivor moved into the fewest blocks all shapes come out nearly alike "
                "(StreamingLLM's sinks come on top of the budget); they differ in what has to be copied."
            ),
            drawings=plain(charts.with_compaction, cost),
            series=("at-eviction", "by-compaction"),
        ),
    )


def build(folder: Folder) -> Section:
    """Return the section of the realistic shapes."""
    summary = Summary.of(folder)
    free = {policy: summary.quantity("shapes", policy, "physical_reclaim", 16) for policy in POLICIES}
    moved = summary.quantity("shapes", "h2o", "moved_fraction", 16)
    exact = summary.quantity("shapes", "h2o", "physical_reclaim", 16, "closed form")
    few = at(summary.with_rare_counts("shapes", summary.rows("shapes", "physical_reclaim")), 16)
    counted = few.filter(policy="h2o", kind="simulated")["remark"][0]
    return Section(
        id="shapes",
        title="Realistic shapes",
        prose=(
            "Real methods leave structured holes. StreamingLLM keeps the first tokens and a recent "
            "window, so its hole is one run. SnapKV keeps clusters and a recent window. H2O keeps single "
            "heavy hitters all over and a recent window. The masks here copy those shapes with synthetic "
            "scores; no model is run.",
            "With half of the tokens kept and B = 16, StreamingLLM's shape frees "
            f"{free['streaming-llm'].text} of the blocks, SnapKV's {free['snapkv'].text}, H2O's "
            f"{free['h2o'].text} and random eviction {free['random'].text}. H2O's mean rests on "
            f"{counted or 'many blocks'} in all runs together; its exact expectation is "
            f"{number(exact.mean)}. The memory is not lost: compaction would free it, and for H2O's shape "
            f"it moves {percent(moved.mean)} of the survivors.",
            "The agreement with the published figures is calibration: the number of blocks, the jitter of "
            "the budget and the cluster length were fitted to them. Whether these shapes are those of the "
            "methods on a model, only masks of a model can say.",
        ),
        items=(*_figures(summary), *faults(folder, "shapes")),
        key_numbers=(
            KeyNumber(
                free["streaming-llm"].percent,
                "of the blocks come free when half of the tokens go in StreamingLLM's shape",
                free["streaming-llm"].evidence,
            ),
            KeyNumber(
                exact.percent,
                "of the blocks come free in H2O's shape at the same budget, in exact expectation",
                exact.evidence,
            ),
        ),
        sources=("study", "streaming-llm", "snapkv", "h2o"),
    )
