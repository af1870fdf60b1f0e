"""Admission: requests that get in after the eviction."""

from __future__ import annotations

from kvreclaim.report.charts import admission as charts
from kvreclaim.report.charts.rows import only
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import Figure, KeyNumber, Section
from kvreclaim.report.sections.parts import faults, plain
from kvreclaim.report.summary import Summary, at
from kvreclaim.report.wording import number

EXPERIMENTS = ("admission",)
_SERIES = ("random", "lowest-importance", "reclaimability-aware", "block-wise", "random+compaction", "naive")


def build(folder: Folder) -> Section:
    """Return the section of request admission."""
    summary = Summary.of(folder)
    rows = only(summary.rows("admission", "admitted"), _SERIES)
    half = at(rows, 0.5)
    admitted = {
        policy: summary.quantity(
            "admission", policy, "admitted", 0.5, "closed form" if policy == "naive" else "simulated"
        )
        for policy in _SERIES
    }
    aware, lowest = admitted["reclaimability-aware"], admitted["lowest-importance"]
    return Section(
        id="admission",
        title="Who gets in",
        prose=(
            "A full pool of 512 blocks loses half of its tokens; each new request needs eight free "
            f"blocks, all or none. Counting tokens, {admitted['naive'].text} requests should fit.",
            f"Random and lowest-importance eviction admit {admitted['random'].text} and {lowest.text}, "
            f"reclaimability-aware {aware.text}, block-wise {admitted['block-wise'].text}. Random eviction "
            f"followed by compaction admits {admitted['random+compaction'].text}, at the price of its "
            "copies.",
            "Requests here have one size, arrive at once and never finish. What admission does to "
            "throughput and latency under traffic is another simulation.",
        ),
        items=(
            Figure(
                id="admission-half",
                title="Requests admitted after the same eviction of half of the tokens",
                caption="Admission counts whole groups of eight blocks, so it moves in steps.",
                drawings=plain(charts.by_policy, half),
                series=_SERIES,
            ),
            Figure(
                id="admission-ratio",
                title="Requests admitted as more tokens go",
                caption=(
                    "Block-wise and random with compaction lie on each other; "
                    "hide one by its legend entry to see both."
                ),
                drawings=plain(charts.over_ratio, rows),
                series=_SERIES,
            ),
            *faults(folder, "admission"),
        ),
        key_numbers=(
            KeyNumber(
                f"{number(lowest.mean)} of {admitted['naive'].text}",
                "requests that the tokens promise get in after lowest-importance eviction",
                f"{lowest.evidence}, ± {number(lowest.std)}",
            ),
        ),
        sources=("study",),
    )
