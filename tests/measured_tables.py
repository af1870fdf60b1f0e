"""A results folder in the shape of `kvreclaim measure`, with made-up numbers like those of a small model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kvreclaim import KeepMask
from kvreclaim.blockmap import block_map, block_map_frame
from kvreclaim.report.columns import schema

RATIOS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
BLOCK_SIZES = (16, 8, 32, 64)
PROMPTS = 5
REMEDIES = ("zero_copy", "compaction", "packing")
# At ratio .5 and B = 16: reclaim per head, per layer, shared and packed (shared), KL, ΔNLL, top-1.
POLICIES: dict[str, tuple[float, ...]] = {
    "streaming-llm": (0.492, 0.492, 0.492, 0.5, 0.033, 0.034, 0.920),
    "snapkv": (0.224, 0.073, 0.0, 0.5, 0.015, 0.020, 0.945),
    "pyramidkv": (0.315, 0.208, 0.0, 0.07, 0.036, 0.044, 0.914),
    "adakv:snapkv": (0.251, 0.050, 0.0, 0.004, 0.014, 0.017, 0.948),
    "h2o": (0.014, 0.001, 0.0, 0.5, 0.011, 0.014, 0.953),
    "observed-attention": (0.017, 0.001, 0.0, 0.5, 0.016, 0.020, 0.948),
    "tova": (0.037, 0.037, 0.0, 0.5, 0.028, 0.026, 0.923),
    "expected-attention": (0.035, 0.001, 0.0, 0.5, 0.019, 0.018, 0.948),
    "keydiff": (0.016, 0.001, 0.0, 0.5, 0.068, 0.071, 0.870),
    "knorm": (0.005, 0.001, 0.0, 0.5, 0.189, 0.191, 0.809),
    "chunkkv:chunk_length=16:snapkv": (0.500, 0.500, 0.089, 0.5, 0.017, 0.017, 0.946),
    "random": (0.0, 0.0, 0.0, 0.5, 0.905, 0.837, 0.605),
}


def measured(policies: dict[str, tuple[float, ...]] = POLICIES) -> pl.DataFrame:
    """Return ``measured.csv``: every number is its value at ratio .5, bent over ratio and block size."""
    rows = []
    for prompt in range(PROMPTS):
        shift = 1 + 0.06 * (prompt - 2)
        for policy, (per_head, per_layer, shared, packed, kl, delta_nll, top1) in policies.items():
            for ratio in RATIOS:
                harm = shift * (ratio / (1 - ratio)) ** 1.6
                for block_size in BLOCK_SIZES:
                    for tables, reclaim in (
                        ("shared", shared),
                        ("per_layer", per_layer),
                        ("per_head", per_head),
                    ):
                        at_half = 2 * reclaim if reclaim > 0.4 else 2 * reclaim * shift
                        steep = 1 if reclaim > 0.4 else 3 * block_size / 16
                        free = min(ratio, at_half * ratio * (2 * ratio) ** steep)
                        rows.append(
                            {
                                "model": "smollm2-135m",
                                "prompt": f"topics-{prompt}",
                                "policy": policy,
                                "ratio": ratio,
                                "retained": 1 - ratio,
                                "tokens": 2048,
                                "block_size": block_size,
                                "block_tables": tables,
                                "physical_reclaim": free,
                                "reclaim_efficiency": free / ratio,
                                "fragmentation": 0.5 - free / 2,
                                "stranded": 0.5 - free / 2,
                                "packing_reclaim": 2 * packed * ratio,
                                "packing_moved_pairs": int(40_000 * max(0, 1 - 2 * free) * ratio),
                                "kl": kl * harm,
                                "delta_nll": delta_nll * harm - 0.004 * prompt,
                                "top1": 1 - min(0.9, (1 - top1) * harm),
                            }
                        )
    return pl.DataFrame(rows, infer_schema_length=None)


def matched(policies: dict[str, tuple[float, ...]] = POLICIES) -> pl.DataFrame:
    """Return ``matched.csv`` for a target of .015 nats; two policies lie outside the sweep."""
    rows = []
    for policy, (per_head, per_layer, shared, packed, kl, *_) in policies.items():
        odds = (0.015 / kl) ** (1 / 1.6)
        below, above = (PROMPTS, 0) if policy == "random" else (0, 3 if policy == "h2o" else 0)
        ratio = 0.0 if below else 0.9 if above else odds / (1 + odds)
        for tables, reclaim in (("shared", shared), ("per_layer", per_layer), ("per_head", per_head)):
            free = min(ratio, 2 * reclaim * ratio)
            freed = dict(
                zip(REMEDIES, (free, min(ratio, 1.05 * free), max(free, 2 * packed * ratio)), strict=True)
            )
            for remedy, share in freed.items():
                rows.append(
                    {
                        "policy": policy,
                        "target_kl": 0.015,
                        "ratio": ratio,
                        "retained": 1 - ratio,
                        "block_tables": tables,
                        "remedy": remedy,
                        "physical_reclaim": share,
                        "low": 0.9 * share,
                        "high": min(1.0, 1.1 * share),
                        "moved_bytes": 0 if remedy == "zero_copy" else 8e6 * ratio,
                        "admitted": float(int(512 * share) // 8),
                        "reached": PROMPTS - below - above,
                        "below": below,
                        "above": above,
                    }
                )
    return pl.DataFrame(rows, infer_schema_length=None)


def table_of(
    shares: dict[str, tuple[float, float]], ratios: tuple[float, ...] = (0.5,), prompts: int = 1
) -> pl.DataFrame:
    """Return a measured table of given reclaim and packed reclaim, alike in all kinds of table."""
    rows = [
        {
            "model": "m",
            "prompt": f"p{prompt}",
            "policy": policy,
            "ratio": ratio,
            "retained": 1 - ratio,
            "tokens": 64,
            "block_size": 16,
            "block_tables": tables,
            "physical_reclaim": free,
            "reclaim_efficiency": None,
            "fragmentation": None,
            "stranded": None,
            "packing_reclaim": packed,
            "packing_moved_pairs": 0,
            "kl": 0.01,
            "delta_nll": 0.0,
            "top1": 1.0,
        }
        for prompt in range(prompts)
        for policy, (free, packed) in shares.items()
        for ratio in ratios
        for tables in ("shared", "per_layer", "per_head")
    ]
    return pl.DataFrame(
        rows, schema_overrides={"reclaim_efficiency": pl.Float64, "fragmentation": pl.Float64}
    )


def matched_of(
    reclaim: dict[str, tuple[float, float, float]], prompts: int = 6, **outside: tuple[int, int]
) -> pl.DataFrame:
    """Return a matched table of a shared table without copies: median, low and high a policy."""
    rows = []
    for policy, (median, low, high) in reclaim.items():
        below, above = outside.get(policy, (0, 0))
        numbers = {"target_kl": 0.01, "ratio": 0.4, "retained": 0.6, "moved_bytes": None, "admitted": 0.0}
        where = {"block_tables": "shared", "remedy": "zero_copy", "reached": prompts - below - above}
        free = {"physical_reclaim": median, "low": low, "high": high, "below": below, "above": above}
        rows.append({"policy": policy, **numbers, **where, **free})
    return pl.DataFrame(rows, schema_overrides={"moved_bytes": pl.Float64})


EMPTY = matched().clear()

# Of 66 trials solved by the full cache: how many with the question seen, and unseen.
FOUND = {
    "streaming-llm": (33, 31),
    "snapkv": (66, 20),
    "pyramidkv": (60, 18),
    "adakv:snapkv": (66, 22),
    "h2o": (58, 12),
    "observed-attention": (57, 11),
    "tova": (61, 14),
    "expected-attention": (40, 39),
    "keydiff": (45, 44),
    "knorm": (2, 1),
    "chunkkv:chunk_length=16:snapkv": (65, 25),
    "random": (0, 0),
}


def wilson(solved: int, of: int) -> tuple[float, float]:
    """Return the ends of Wilson's 95 % interval, as the two roots of its quadratic equation."""
    z2, share = 1.959964**2, solved / of
    half = (z2 * (4 * of * share * (1 - share) + z2)) ** 0.5
    low, high = ((2 * of * share + z2 + sign * half) / (2 * (of + z2)) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


def needles_of(
    found: dict[str, tuple[int, int]], task: str = "single", full_solved: int = 66, trials: int = 70
) -> pl.DataFrame:
    """Return ``needles.csv`` of one task: trials solved, with the question seen and unseen."""
    rows = []
    for place, seen in enumerate((True, False)):
        for policy, solved in found.items():
            undefined = dict.fromkeys(("share", "low", "high", "retained", "needle_retained"))
            numbers = {
                "task": task,
                "question_seen": seen,
                "policy": policy,
                "ratio": 0.5,
                "trials": trials,
                "full_solved": full_solved,
                "solved": solved[place],
                **undefined,
            }
            if full_solved:
                low, high = wilson(solved[place], full_solved)
                share = solved[place] / full_solved
                numbers |= {"share": share, "low": low, "high": high, "retained": 0.5}
                numbers |= {"needle_retained": 0.2 + 0.7 * share}
            rows.append(numbers)
    return pl.DataFrame(rows, schema_overrides=schema("needles.csv"), infer_schema_length=None)


def needles() -> pl.DataFrame:
    """Return ``needles.csv`` of three tasks: one ranks, one has too few trials, one is never solved."""
    few = {policy: (solved // 3, 0) for policy, (solved, _) in FOUND.items()}
    never = dict.fromkeys(FOUND, (0, 0))
    tables = (
        needles_of(FOUND),
        needles_of(few, "multi-key", full_solved=49),
        needles_of(never, "multi-value", full_solved=0),
    )
    return pl.concat(tables)


VIEWS = {"all layers and heads": np.s_[:], "layer 2": np.s_[2], "layer 2, head 0": np.s_[2, 0]}


def block_maps() -> list[dict[str, Any]]:
    """Return two policies' maps at three ratios: all of 4 layers and 2 heads, one layer, one head."""
    generator = np.random.default_rng(3)
    maps = []
    for policy in ("streaming-llm", "adakv:snapkv"):
        scores = generator.random((4, 2, 250))
        if policy == "streaming-llm":
            scores[:] = np.arange(250)
        for view, place in VIEWS.items():
            frames = [
                block_map_frame(KeepMask((scores >= np.quantile(scores, ratio))[place]), 16, ratio)
                for ratio in (0.25, 0.5, 0.75)
            ]
            maps.append({**block_map(f"{policy}/{view}", policy, 16, frames), "view": view})
    return maps


def write_measured(
    folder: Path,
    measured_table: pl.DataFrame | None = None,
    matched_table: pl.DataFrame | None = None,
    needle_table: pl.DataFrame | None = None,
) -> Path:
    """Write a folder as ``kvreclaim measure`` does; without needles, as before there were any."""
    folder.mkdir(parents=True, exist_ok=True)
    (measured() if measured_table is None else measured_table).write_csv(folder / "measured.csv")
    (matched() if matched_table is None else matched_table).write_csv(folder / "matched.csv")
    if needle_table is not None:
        needle_table.write_csv(folder / "needles.csv")
    run = {
        "schema": 1,
        "command": "measure",
        "created": "2026-03-04T05:06:07+00:00",
        "versions": {"kvreclaim": "0.2.0", "torch": "2.13.0"},
        "parameters": {
            "model": "smollm2-135m",
            "context": 2048,
            "request_tokens": 128,
            "target": {"policy": "snapkv", "ratio": 0.5},
            "needles": None if needle_table is None else {"trials": 70, "context": 1024, "ratio": 0.5},
            "geometry": {
                "name": "smollm2-135m",
                "layers": 30,
                "kv_heads": 3,
                "head_dim": 64,
                "dtype": "bfloat16",
                "windows": [],
            },
            "cut": [{"name": "prompt-1", "source": "pydoc_data.topics"}],
        },
        "kinds": ["measured"],
    }
    _write_json(folder / "run.json", run)
    _write_json(folder / "interactive_data.json", {"schema": 1, "block_maps": block_maps()})
    return folder


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")
