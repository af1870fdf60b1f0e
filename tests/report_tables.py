"""Small results folders in the shape of the study's and the audit's, with made-up numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

RATIOS = [round(0.1 * step, 1) for step in range(1, 10)]
STRATEGIES = {"random": 0.002, "lowest-importance": 0.004, "block-wise": 1.0, "reclaimability-aware": 0.72}
SHAPES = {"streaming-llm": 0.94, "snapkv": 0.58, "h2o": 0.002, "random": 0.0}
POLICIES = [
    "random",
    "lowest-importance",
    "block-wise",
    "reclaimability-aware",
    "streaming-llm",
    "h2o",
    "snapkv",
]
FAULT = "Nothing is lost for good <b>here</b>."
HOSTILE = "<script>alert(1)</script>"


def row(
    experiment: str, policy: str, x: float, metric: str, mean: float, std: float = 0.01, **more: Any
) -> dict[str, Any]:
    kind = more.get("kind", "simulated")
    return {
        "experiment": experiment,
        "policy": policy,
        "x_name": more.get("x_name", "compression_ratio"),
        "x": x,
        "metric": metric,
        "kind": kind,
        "mean": mean,
        "std": 0.0 if kind == "closed form" else std,
        "n": 1 if kind == "closed form" else 30,
    }


def closed(experiment: str, policy: str, x: float, metric: str, mean: float, **more: Any) -> dict[str, Any]:
    return row(experiment, policy, x, metric, mean, kind="closed form", **more)


def _bound() -> list[dict[str, Any]]:
    rows = []
    for block_size in (4, 8, 16, 32, 64):
        for q in [*np.round(np.arange(0, 1.01, 0.02), 2).tolist(), 0.75]:
            for policy, factor in (("independent", 1.0), ("exact", 0.985)):
                at = (f"bound/B={block_size}", policy, q)
                rows.append(closed(*at, "physical_reclaim", factor * q**block_size))
                if q:
                    rows.append(closed(*at, "reclaim_efficiency", factor * q ** (block_size - 1)))
    return rows


def _shapes() -> list[dict[str, Any]]:
    rows = []
    for policy, share in SHAPES.items():
        for experiment, x_name, xs in (
            ("shapes", "block_size", [4, 8, 16, 32, 64]),
            ("shapes_retained", "retained", RATIOS),
        ):
            for x in xs:
                saving = 0.5 if x_name == "block_size" else 1 - x
                at, name = (experiment, policy, x), {"x_name": x_name}
                reclaim = share * saving * (16 / x if policy == "h2o" and x_name == "block_size" else 1)
                rows += [
                    row(*at, "physical_reclaim", reclaim, 0.02, **name),
                    row(*at, "retained", 1 - saving, **name),
                    row(*at, "moved_fraction", 0.4 * (1 - share) + 0.006, 0.004, **name),
                    row(*at, "fragmentation", 0.3, **name),
                    row(*at, "compacted_reclaim", saving - 0.01, **name),
                    row(*at, "free_blocks_total", 705.0, 0.0, **name),
                ]
                if policy != "snapkv":
                    rows.append(closed(*at, "physical_reclaim", 1.01 * reclaim, **name))
    for length in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64):
        at, name = ("snapkv_cluster", "snapkv", length), {"x_name": "cluster_length"}
        rows.append(row(*at, "physical_reclaim", 0.45 * (1 - 2.0 ** (-length / 8)), 0.03, **name))
        rows.append(closed(*at, "physical_reclaim", 0.46 * (1 - 2.0 ** (-length / 8)), **name))
    return rows


def _strategies() -> list[dict[str, Any]]:
    losses = {"random": 0.5, "lowest-importance": 0.16, "block-wise": 0.38, "reclaimability-aware": 0.28}
    rows = []
    for place, law in enumerate(("lognormal", "uniform", "exponential", "pareto-2", "pareto-1.5")):
        for policy, share in STRATEGIES.items():
            for q in RATIOS:
                at = (f"strategies/{law}", policy, q)
                loss = losses[policy] * 2 * q + 0.03 * place
                rows += [
                    row(*at, "physical_reclaim", share * q),
                    row(*at, "reclaim_efficiency", share),
                    row(*at, "importance_loss", loss),
                    row(*at, "fragmentation", 0.5 - 0.5 * share),
                    row(*at, "admitted", float(int(64 * share * q))),
                    row(*at, "moved_tokens", 1600 * (1 - share)),
                ]
        for step in range(17):
            x = step / 32
            frontier = (f"frontier/{law}", "minimum-loss", x, "importance_loss")
            rows.append(row(*frontier, 0.16 + 0.03 * place + 0.88 * x * x, x_name="physical_reclaim"))
    for q in RATIOS:
        for policy, share in {**STRATEGIES, "random+compaction": 1.0}.items():
            rows.append(row("admission", policy, q, "admitted", 64 * share * q, 0.5))
        rows.append(closed("admission", "naive", q, "admitted", float(int(64 * q))))
    return rows


def _correlation() -> list[dict[str, Any]]:
    rows = []
    for rho in (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1):
        at = {"x_name": "rho"}
        rows.append(row("correlation", "lowest-importance", rho, "physical_reclaim", 0.465 * rho**3, **at))
        rows.append(row("correlation", "block-wise", rho, "physical_reclaim", 0.5, 0.0, **at))
        rows.append(row("correlation", "gap", rho, "gap_to_block_wise", 0.5 - 0.465 * rho**3, **at))
    return rows


def _compaction() -> list[dict[str, Any]]:
    values = {
        "random": (1647.0, 2.48, 2.48, 2.48, 0.0, 256.0),
        "clustered-hole": (4.3, 5.67, 3.75, 1425.0, 255.1, 0.9),
        "block-wise": (0.0, None, None, None, 256.0, 0.0),
    }
    metrics = ("moved_tokens", "slots_per_move", "slots_per_move_ratio_of_means", "total_slots_per_move")
    rows = []
    for policy, numbers in values.items():
        named = zip((*metrics, "free_at_eviction", "free_by_compaction"), numbers, strict=True)
        rows += [
            row("compaction", policy, 0.5, metric, value, 0.2) for metric, value in named if value is not None
        ]
        rows.append(row("compaction", policy, 0.5, "moved_bytes", 131072 * numbers[0], 1e5))
    return rows


def _frame(keep: np.ndarray, ratio: float, share: str | None = None) -> dict[str, Any]:
    """Return a block map's frame; it moves the first live token of the last block to the first dead slot."""
    blocks = keep.reshape(-1, 16)
    live, dead = np.flatnonzero(keep), np.flatnonzero(~keep)
    held = blocks.any(axis=1)
    moves = [[int(live[-1]), int(dead[0])]] if dead.size and dead[0] < live[-1] else []
    frame = {
        "compression_ratio": ratio,
        "keep": np.packbits(keep).tobytes().hex(),
        "free_blocks": int((~held).sum()),
        "blocks": len(blocks),
        "logical_saving": float(1 - keep.mean()),
        "physical_reclaim": float((~held).mean()),
        "dead_tokens_held": int((~blocks[held]).sum()),
        "compaction": {"freed_blocks": 1 if moves else 0, "moves": moves},
    }
    return frame if share is None else {**frame, "share": share}


def block_maps() -> list[dict[str, Any]]:
    generator = np.random.default_rng(7)
    maps = []
    for policy in POLICIES:
        scores = generator.random(512)
        if policy in ("streaming-llm", "block-wise"):
            scores = np.linspace(0, 1, 512)
        frames = []
        for step in range(1, 20):
            keep = np.ones(512, dtype=bool)
            keep[np.argsort(scores, kind="stable")[: round(0.05 * step * 512)]] = False
            frames.append(_frame(keep, round(0.05 * step, 2)))
        maps.append({"id": policy, "title": policy, "block_size": 16, "tokens": 512, "frames": frames})
    return maps


def published() -> pl.DataFrame:
    return pl.DataFrame(
        [
            (
                "bound.reclaim.q=.5",
                "q^B at B = 16, q = .5",
                "0.0015 %",
                1.526e-5,
                0.0,
                1,
                1.526e-5,
                5e-7,
                "exact",
            ),
            ("shapes.snapkv", "SnapKV's physical reclaim", ".29", 0.285, 0.04, 30, 0.2877, 0.03, "within"),
            (
                "compaction.hole",
                "slots per move, clustered holes",
                "6.65",
                5.2,
                4.4,
                30,
                5.665,
                2.4,
                "compatible",
            ),
            ("admission.other", "an invented figure", "12", 9.0, 0.1, 30, None, 0.1, "not reproduced"),
        ],
        schema=["id", "quantity", "published", "reproduced", "std", "n", "oracle", "tolerance", "status"],
        orient="row",
    )


def write_study(folder: Path) -> Path:
    """Write a folder as ``kvreclaim reproduce`` does."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [*_bound(), *_shapes(), *_strategies(), *_correlation(), *_compaction()]
    pl.DataFrame(rows, infer_schema_length=None, schema_overrides={"x": pl.Float64}).write_csv(
        folder / "results_summary.csv"
    )
    published().write_csv(folder / "published.csv")
    faults = [{"section": "shapes", "text": FAULT}]
    _write_json(folder / "interactive_data.json", {"schema": 1, "block_maps": block_maps(), "faults": faults})
    _write_json(
        folder / "run.json", _run("reproduce", {"seeds": 30, "seed_base": 0}, ["closed form", "simulated"])
    )
    return folder


def write_audit(folder: Path, policies: tuple[str, ...] = ("streaming-llm", "snapkv", HOSTILE)) -> Path:
    """Write a folder as ``kvreclaim audit --out`` does: two files, one policy with a hostile name."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, maps = [], []
    for place, policy in enumerate(policies):
        rows += [
            _ledger(file, policy, tables, reclaim / (place + 1) + 0.01 * shift)
            for shift, file in enumerate(("a.npz", "b.npz"))
            for tables, reclaim in (("per_head", 0.48), ("per_layer", 0.3), ("shared", 0.1))
        ]
        keep = np.arange(250) % (place + 2) == 0
        padded = np.concatenate([keep, np.zeros(6, dtype=bool)])
        share = "".join(f"{15 if live else 0:x}" for live in keep)
        frame = {**_frame(padded, 0.5), "keep": np.packbits(keep).tobytes().hex()}
        frame |= {"share": share, "stranded": 0.48}
        maps.append({"id": policy, "title": policy, "block_size": 16, "tokens": 250, "frames": [frame]})
    pl.DataFrame(rows, infer_schema_length=None).write_csv(folder / "audit.csv")
    _write_json(folder / "interactive_data.json", {"schema": 1, "block_maps": maps})
    _write_json(folder / "run.json", _run("audit", {"files": ["a.npz", "b.npz"]}, ["measured"]))
    return folder


def _ledger(file: str, policy: str, tables: str, reclaim: float) -> dict[str, Any]:
    blocks = 64 * {"shared": 1, "per_layer": 30, "per_head": 90}[tables]
    free = round(blocks * reclaim)
    return {
        "file": file,
        "policy": policy,
        "model": "maker/tiny-model",
        "ratio": 0.5,
        "layers": 30,
        "kv_heads": 3,
        "tokens": 1024,
        "block_size": 16,
        "block_tables": tables,
        "blocks": blocks,
        "free_blocks": free,
        "logical_saving": 0.5,
        "physical_reclaim": free / blocks,
        "reclaim_efficiency": 2 * free / blocks,
        "fragmentation": 0.4,
        "stranded": 0.45,
        "live_union": 0.9,
        "compaction_min_blocks": 40,
        "compaction_freed_blocks": 3,
        "compaction_moved_tokens": 20,
        "compaction_slots_per_move": 2.4,
        "compaction_moved_bytes": None,
        "packing_blocks_needed": 32,
        "packing_physical_reclaim": 0.5,
        "packing_moved_pairs": 9000,
        "packing_moved_bytes": None,
        "bytes_freed": None,
    }


def _run(command: str, parameters: dict[str, Any], kinds: list[str]) -> dict[str, Any]:
    versions = {"kvreclaim": "0.1.0", "numpy": "2.4"}
    created = "2026-01-02T03:04:05+00:00"
    return {
        "schema": 1,
        "command": command,
        "created": created,
        "versions": versions,
        "parameters": parameters,
        "kinds": kinds,
    }


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")
