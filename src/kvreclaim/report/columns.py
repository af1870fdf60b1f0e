"""The tables of results folders: the columns that make a table what its name says, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Column:
    """What a column holds.

    Parameters
    ----------
    kind
        Type of its values.
    low, high
        The least and the most that a value may be; None where nothing bounds it.
    """

    kind: type[pl.DataType]
    low: float | None = None
    high: float | None = None

    @property
    def range(self) -> str:
        """What a value may be, in words."""
        low = "" if self.low is None else f"at least {self.low:g}"
        return " and ".join(filter(None, (low, "" if self.high is None else f"at most {self.high:g}")))


TEXT = Column(pl.String)
FLAG = Column(pl.Boolean)
COUNT, SIZE = Column(pl.Int64, 0), Column(pl.Int64, 1)
NUMBER, AMOUNT = Column(pl.Float64), Column(pl.Float64, 0)
SHARE, PERCENT = Column(pl.Float64, 0, 1), Column(pl.Float64, 0, 100)
KL = Column(pl.Float64, -1e-6)  # at least 0 but for rounding

_SCENARIO = ("block_size", "pool_blocks", "requests", "prompt_tokens", "max_tokens")
_STEP = ("free_blocks", "scheduled", "running", "waiting", "preemptions")
_EVICTED = ("tokens", "held", "blocks_freed")

# Texts stay texts: ".50" is not a number here.
COLUMNS: Mapping[str, Mapping[str, Column]] = {
    "results_summary.csv": {
        "experiment": TEXT,
        "policy": TEXT,
        "x_name": TEXT,
        "x": NUMBER,
        "metric": TEXT,
        "kind": TEXT,
        "mean": NUMBER,
        "std": AMOUNT,
        "n": COUNT,
    },
    "published.csv": {
        "id": TEXT,
        "quantity": TEXT,
        "published": TEXT,
        "reproduced": NUMBER,
        "std": AMOUNT,
        "n": COUNT,
        "oracle": NUMBER,
        "tolerance": AMOUNT,
        "status": TEXT,
    },
    "audit.csv": {
        "file": TEXT,
        "policy": TEXT,
        "model": TEXT,
        "ratio": SHARE,
        "layers": SIZE,
        "kv_heads": SIZE,
        "tokens": SIZE,
        "block_size": SIZE,
        "block_tables": TEXT,
        "blocks": SIZE,
        "free_blocks": COUNT,
        "logical_saving": SHARE,
        "physical_reclaim": SHARE,
        "stranded": SHARE,
        "live_union": AMOUNT,
        "compaction_freed_blocks": COUNT,
        "packing_physical_reclaim": SHARE,
        "packing_moved_pairs": COUNT,
    },
    "measured.csv": {
        "model": TEXT,
        "prompt": TEXT,
        "policy": TEXT,
        "ratio": SHARE,
        "retained": SHARE,
        "tokens": SIZE,
        "block_size": SIZE,
        "block_tables": TEXT,
        "physical_reclaim": SHARE,
        "reclaim_efficiency": AMOUNT,
        "fragmentation": SHARE,
        "stranded": SHARE,
        "packing_reclaim": SHARE,
        "packing_moved_pairs": COUNT,
        "kl": KL,
        "delta_nll": NUMBER,
        "top1": SHARE,
    },
    "traffic.csv": {
        "scenario": TEXT,
        "requests": COUNT,
        "iterations": COUNT,
        "seconds": AMOUNT,
        "peak_running": COUNT,
        "peak_blocks": COUNT,
        "peak_waiting": COUNT,
        "preemptions": COUNT,
        "ttft_mean": AMOUNT,
        "ttft_p99": AMOUNT,
        "latency_p50": AMOUNT,
        "latency_p99": AMOUNT,
        "pool_binding": FLAG,
    },
    "timeline.csv": {
        "scenario": TEXT,
        "time": AMOUNT,
        "running": COUNT,
        "waiting": COUNT,
        "free_blocks": COUNT,
        "held_pages": COUNT,
        "stranded": SHARE,
    },
    "percentiles.csv": {
        "scenario": TEXT,
        "percent": PERCENT,
        "ttft": AMOUNT,
        "latency": AMOUNT,
    },
    "capacity.csv": {
        "name": TEXT,
        "mode": TEXT,
        "requests": COUNT,
        "refused": COUNT,
        "outcome": TEXT,
        "load": AMOUNT,
        "requests_per_second_per_gpu": AMOUNT,
        "binds_at_capacity": TEXT,
    },
    "pages.csv": {
        "policy": TEXT,
        "page": COUNT,
        "live_blocks": COUNT,
        "blocks": SIZE,
    },
    "matched.csv": {
        "policy": TEXT,
        "target_kl": AMOUNT,
        "ratio": SHARE,
        "retained": SHARE,
        "block_tables": TEXT,
        "remedy": TEXT,
        "physical_reclaim": SHARE,
        "low": SHARE,
        "high": SHARE,
        "moved_bytes": AMOUNT,
        "admitted": AMOUNT,
        "reached": COUNT,
        "below": COUNT,
        "above": COUNT,
    },
    "matched_prompts.csv": {
        "prompt": TEXT,
        "policy": TEXT,
        "target_kl": AMOUNT,
        "kl": KL,
        "reached": TEXT,
    },
    "needles.csv": {
        "task": TEXT,
        "question_seen": FLAG,
        "policy": TEXT,
        "ratio": SHARE,
        "trials": COUNT,
        "full_solved": COUNT,
        "solved": COUNT,
        "share": SHARE,
        "low": SHARE,
        "high": SHARE,
        "retained": SHARE,
        "needle_retained": SHARE,
    },
    "runs.csv": {
        "run": COUNT,
        "runtime": TEXT,
        "model": TEXT,
        "policy": TEXT,
        "mode": TEXT,
        "budget": SIZE,
        "buffer": SIZE,
        **dict.fromkeys(_SCENARIO, SIZE),
        "observed_peak_running": COUNT,
        "predicted_peak_running": COUNT,
        "observed_steps": COUNT,
        "predicted_steps": COUNT,
        "observed_blocks_freed": COUNT,
        "predicted_blocks_freed": COUNT,
        "observed_preemptions": COUNT,
        "predicted_preemptions": COUNT,
        "observed_free_blocks_end": COUNT,
        "predicted_free_blocks_end": COUNT,
        "unequal": TEXT,
        "moved_bytes": COUNT,
    },
    "budgets.csv": {
        "policy": TEXT,
        "mode": TEXT,
        "ratio": SHARE,
        "budget": SIZE,
        "target_kl": AMOUNT,
        "outside": COUNT,
    },
    "steps.csv": {
        "run": COUNT,
        "step": SIZE,
        **{f"{kind}{column}": COUNT for kind in ("", "predicted_") for column in _STEP},
    },
    "evictions.csv": {"run": COUNT},
    "advice.csv": {
        "candidate": TEXT,
        "policy": TEXT,
        "parameters": TEXT,
        "ratio": SHARE,
        "block_tables": TEXT,
        "physical_reclaim": SHARE,
        "moved_fraction": SHARE,
        "kl": KL,
        "kl_ratio_to_snapkv": AMOUNT,
        "top1": SHARE,
        "needle": SHARE,
        "loss": NUMBER,
        "packing_reclaim": SHARE,
        "packing_moved_fraction": SHARE,
        "packing_mib": AMOUNT,
        "admitted": COUNT,
        "gib": AMOUNT,
        "pareto": FLAG,
        "recommended": FLAG,
    },
}

# Columns that came later, or are there only where something was measured.
OPTIONAL: Mapping[str, Mapping[str, Column]] = {
    "runs.csv": {
        "ratio": SHARE,
        "target_kl": AMOUNT,
        "outside": COUNT,
        **{f"kl_{mask}{end}": KL for mask in ("asked", "effective") for end in ("", "_low", "_high")},
        **{f"kl_{mask}_count": COUNT for mask in ("asked", "effective")},
    },
    "matched_prompts.csv": {"ratio": SHARE, "retained": SHARE},
    "evictions.csv": {  # of a runtime that shows no evictions there are no columns
        **dict.fromkeys(("step", "request"), COUNT),
        **dict.fromkeys(("policy", "mode"), TEXT),
        "budget": SIZE,
        **{f"{kind}{column}": COUNT for kind in ("", "predicted_") for column in _EVICTED},
        **dict.fromkeys(("event", "computed_tokens", "kept", "kept_pairs", "attended_pairs"), COUNT),
        **dict.fromkeys(("dead_pairs", "blocks_before", "moved_pairs", "moved_bytes", "runs"), COUNT),
        **dict.fromkeys(("score_seconds", "seconds", "priced_seconds"), AMOUNT),
    },
}

# What names a row: no two of a table are alike in all of these.
KEYS: Mapping[str, tuple[str, ...]] = {
    "published.csv": ("id",),
    "measured.csv": ("prompt", "policy", "ratio", "block_size", "block_tables"),
    "matched.csv": ("policy", "block_tables", "remedy"),
    "matched_prompts.csv": ("prompt", "policy"),
    "needles.csv": ("task", "question_seen", "policy"),
    "traffic.csv": ("scenario",),
    "percentiles.csv": ("scenario", "percent"),
    "pages.csv": ("policy", "page"),
    "runs.csv": ("run",),
    "budgets.csv": ("policy", "mode"),
    "steps.csv": ("run", "step"),
}


def schema(name: str) -> dict[str, type[pl.DataType]]:
    """Return the types of a table's columns, by name: those it must have, then those it may have."""
    return {key: column.kind for key, column in {**COLUMNS[name], **OPTIONAL.get(name, {})}.items()}
