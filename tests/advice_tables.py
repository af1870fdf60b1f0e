"""A small results folder in the shape of ``kvreclaim advise``'s, with made-up numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import measured_tables
import polars as pl

# candidate, comes back, copied, KL by SnapKV's; what packing copies, where the budget leaves it out
CANDIDATES = (
    ("fp8", 0.5, 0.0, 0.2),
    ("int8", 0.484, 0.0, 0.1),
    ("block-swap:copies=0.03:last-queries", 0.5, 0.03, 0.92),
    ("snapkv", 0.0, 0.0, 1.0),
    ("block-joint:expected-attention", 0.5, 0.0, 1.25),
    ("block-joint:last-queries", 0.5, 0.0, 1.31),
    ("streaming-llm", 0.5, 0.002, 2.2),
)


NEEDED = {"snapkv": 0.11}


def rows() -> pl.DataFrame:
    """The rows, those of the least loss first."""
    return pl.DataFrame(
        [
            {
                "candidate": name,
                "policy": ":".join(part for part in name.split(":") if "=" not in part),
                "parameters": "block-swap.copies=0.03" if "=" in name else "",
                "ratio": 0.0 if name in ("fp8", "int8") else 0.5,
                "block_tables": "shared",
                "physical_reclaim": reclaim,
                "moved_fraction": moved,
                "kl": 0.015 * ratio,
                "kl_ratio_to_snapkv": ratio,
                "top1": 0.95 - 0.01 * ratio,
                "needle": None,
                "loss": -4.2 + ratio,
                "packing_reclaim": 0.5 if name in NEEDED else reclaim,
                "packing_moved_fraction": NEEDED.get(name, moved),
                "packing_mib": 45 * NEEDED.get(name, moved),
                "admitted": int(10_000 / (1 - reclaim)),
                "gib": 16 * reclaim,
                "pareto": name.startswith(("block-swap", "block-joint:e", "snapkv")),
                "recommended": name.startswith("block-swap"),
            }
            for name, reclaim, moved, ratio in sorted(CANDIDATES, key=lambda one: one[-1])
        ],
        schema_overrides={"needle": pl.Float64},
    )


def write_advice(folder: Path) -> Path:
    """Write a folder as ``kvreclaim advise`` does."""
    folder.mkdir(parents=True, exist_ok=True)
    rows().write_csv(folder / "advice.csv")
    choice = {
        "recommended": CANDIDATES[2][0],
        "reason": f"{CANDIDATES[2][0]} frees 0.500 with 3.0% of the pairs copied; loses least",
        "comparisons": [
            {
                "name": "block-joint:last-queries",
                "difference": 0.4,
                "low": 0.1,
                "high": 0.7,
                "p": 0.25,
                "told_apart": True,
            },
            {"name": "fp8", "difference": -0.7, "low": None, "high": None, "p": 0.25, "told_apart": True},
        ],
    }
    _write(folder / "advice.json", {"rows": rows().to_dicts(), "choice": choice})
    parameters = {
        "model": "smollm2-135m",
        "ratio": 0.5,
        "block_size": 16,
        "block_tables": "shared",
        "matters": "continuation",
        "copy_budget": 0.03,
        "context": 2048,
        "prompts": 5,
        "trials": 20,
    }
    run = {"schema": 1, "command": "advise", "created": "2026-03-04T05:06:07+00:00", "parameters": parameters}
    _write(folder / "run.json", {**run, "kinds": ["measured"], "versions": {}})
    _write(folder / "interactive_data.json", {"schema": 1, "block_maps": measured_tables.block_maps()})
    return folder


def _write(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")
