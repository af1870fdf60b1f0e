"""In a real runtime: a pool too small, with and without eviction, beside what was predicted."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl

from kvreclaim.report.charts import observed as charts
from kvreclaim.report.charts.rows import label
from kvreclaim.report.folder import Folder
from kvreclaim.report.observations import observed_tables
from kvreclaim.report.section import Control, Drawing, Figure, Item, KeyNumber, Section, Table
from kvreclaim.report.sections.parts import Chart
from kvreclaim.report.wording import listed, mebibytes, number

NAMES = {"vllm": "vLLM", "openvino": "OpenVINO GenAI"}
DONE = {"pack": "packed", "free": "whole dead blocks freed", "mask": "masked only"}
FIGURES = {
    "peak_running": "Peak running",
    "steps": "Steps",
    "blocks_freed": "Blocks freed",
    "preemptions": "Preemptions",
}
AS_PREDICTED = (
    "Predicted: by the scheduler's rules (simulated); where what comes back depends on which pairs a policy "
    "keeps, from the run's own keep masks. Compared are these figures, each eviction, the blocks freed of "
    "each request, and free blocks and queues at every step."
)
SERIES = ("full-cache", "evicted", "full-cache-predicted", "evicted-predicted")
Row = dict[str, Any]


def build(folder: Folder) -> Section:
    """Return the section of a scenario that was observed in a real runtime."""
    runs, steps = observed_tables(folder)
    return Section(
        id="observed",
        title="In a real runtime",
        provenance=folder.made("Observed"),
        prose=(_scenario(folder, runs), *_findings(runs)),
        items=(*_figures(runs, steps), _table(runs)),
        key_numbers=_key_numbers(runs),
        sources=("paged-attention", "streaming-llm", "snapkv"),
    )


def _scenario(folder: Folder, runs: list[Row]) -> str:
    asked = folder.run.get("parameters", {})
    sizes = (
        f"{asked.get('requests', 'several')} requests of {asked.get('prompt_tokens', 'some')} tokens, "
        f"{asked.get('max_tokens', 'some')} more to generate, all there at once, and a pool of "
        f"{asked.get('pool_blocks', 'few')} blocks of {asked.get('block_size', 'some')} tokens"
    )
    runtime = NAMES.get(runs[0]["runtime"], runs[0]["runtime"])
    return (
        f"{asked.get('model', 'A model')} in {runtime}: {sizes}, too small on purpose. Free blocks and "
        "queues are read off the runtime's own objects after every step."
    )


def _findings(runs: list[Row]) -> tuple[str, ...]:
    """Return what eviction changed, whether it was predicted, and what was copied for it."""
    full, *evicted = runs
    told = [
        f"With the full cache at most {full['observed_peak_running']} ran at once, in "
        f"{full['observed_steps']} steps. "
        + " ".join(
            f"{_name(run)}: {run['observed_peak_running']}, in {run['observed_steps']} steps{_freed(run)}."
            for run in evicted
        )
    ]
    told += _matched(evicted)
    predicted = [run for run in runs if run["unequal"] is not None]
    wrong = [run for run in predicted if run["unequal"] != "nothing"]
    if predicted:
        told.append(
            "The rules of vLLM's scheduler, in plain Python, predict each run. "
            + (
                f"Not as predicted: {listed([_name(run) for run in wrong])}."
                if wrong
                else "Peaks, preemptions, the blocks freed of every request, and free blocks and queues at "
                "every step are as predicted: equal, not close. Which pairs a policy keeps is taken from the "
                "run where the outcome depends on it."
            )
        )
    if any(run["mode"] == "pack" for run in evicted):
        told.append(
            "Packing copies the survivors and nothing else. Keys are cached rotated and keep the rotation of "
            "their position, so none is embedded anew, as the study feared."
        )
    return tuple(told)


def _matched(evicted: list[Row]) -> list[str]:
    """Return what the budgets are, where they are those of matched quality."""
    matched = [run for run in evicted if run.get("ratio") is not None]
    if not matched:
        return []
    bounds = [f"{_name(run)} ({run['outside']})" for run in matched if run["outside"]]
    return [
        "Budgets are those of matched quality: on prompts as long as these each policy may evict until it "
        f"does as much harm as the target, a KL of {number(matched[0]['target_kl'])} nats (median over "
        "prompts). Where whole dead blocks are freed, the dead pairs that stay are attended and do no harm: "
        "such a policy may ask for more."
        + (f" Prompts on which the budget is only a bound: {listed(bounds)}." if bounds else "")
    ]


def _freed(run: Row) -> str:
    return "" if run["observed_blocks_freed"] is None else f", {run['observed_blocks_freed']} blocks freed"


def _name(run: Row) -> str:
    """Return what was evicted: ``SnapKV, 128 kept, packed``."""
    if run["policy"] == "none":
        return "Full cache"
    again = "" if run["buffer"] is None else f" + {run['buffer']}"
    kept = None if run["budget"] is None else f"{run['budget']}{again} kept"
    return ", ".join(filter(None, (label(run["policy"]), kept, DONE.get(run["mode"], run["mode"]))))


def _figures(runs: list[Row], steps: pl.DataFrame) -> tuple[Item, ...]:
    if len(runs) == 1:
        return ()
    control = Control("evicted", "Evicted", tuple((str(run["run"]), _name(run)) for run in runs[1:]))
    series = SERIES if steps["predicted_free_blocks"].is_not_null().any() else SERIES[:2]

    def drawings(chart: Chart, column: str) -> dict[tuple[str, ...], Drawing]:
        return {
            (str(run["run"]),): partial(chart, _timeline(steps, (runs[0]["run"], run["run"]), column))
            for run in runs[1:]
        }

    words = (
        " Dashed: predicted; it lies on what was observed where they are equal." if series == SERIES else ""
    )
    return (
        Figure(
            id="observed-free",
            title="Free blocks of the pool, step by step",
            caption=f"After each step, its finished requests and its evictions.{words}",
            drawings=drawings(charts.free_blocks, "free_blocks"),
            controls=(control,),
            series=series,
        ),
        Figure(
            id="observed-running",
            title="Requests that run, step by step",
            caption=f"The same requests are done in fewer steps when more of them run at once.{words}",
            drawings=drawings(charts.running, "scheduled"),
            controls=(control,),
            series=series,
        ),
    )


def _timeline(steps: pl.DataFrame, runs: tuple[int, int], column: str) -> pl.DataFrame:
    """Return one column over the steps, of the full cache and of one run with eviction, and as predicted."""
    parts = []
    for run, series in zip(runs, SERIES, strict=False):
        rows = steps.filter(pl.col("run") == run)
        for name, key, kind in (
            (column, series, "observed"),
            (f"predicted_{column}", f"{series}-predicted", "simulated"),
        ):
            parts.append(
                rows.filter(pl.col(name).is_not_null()).select(
                    policy=pl.lit(key),
                    x=pl.col("step").cast(pl.Float64),
                    mean=pl.col(name).cast(pl.Float64),
                    std=pl.lit(None, dtype=pl.Float64),
                    n=pl.lit(1),
                    kind=pl.lit(kind),
                )
            )
    return pl.concat(parts)


def _table(runs: list[Row]) -> Table:
    predicted = any(run["unequal"] is not None for run in runs)
    columns = ["Evicted"]
    for title in FIGURES.values():
        columns += [title, "Predicted"] if predicted else [title]
    judged = any(run.get("kl_effective") is not None for run in runs)
    columns += ["Moved", *(["KL"] if judged else []), *(["Equal"] if predicted else [])]
    rows = []
    for run in runs:
        cells = [_name(run)]
        for figure in FIGURES:
            cells.append(_count(run[f"observed_{figure}"]))
            cells += [_count(run[f"predicted_{figure}"])] if predicted else []
        cells.append("" if run["moved_bytes"] is None else mebibytes(run["moved_bytes"]))
        cells += [kl_text(run)] if judged else []
        cells += [_verdict(run)] if predicted else []
        rows.append(tuple(cells))
    return Table(
        id="observed-table",
        title="Observed, and predicted",
        caption=(
            "One run each: observed. "
            + ("KL: of what attention saw, measured, median and range over the requests. " if judged else "")
            + (
                AS_PREDICTED
                if predicted
                else "The rules of this runtime are not known, so nothing is predicted."
            )
        ),
        columns=tuple(columns),
        rows=tuple(rows),
        numeric=frozenset(range(1, len(columns) - predicted)),
        tones=tuple(_tone(run) for run in runs) if predicted else (),
    )


def kl_text(run: Row) -> str:
    """Return the KL of what attention saw with its range, where it was measured."""
    if run.get("kl_effective") is None:
        return ""
    return f"{run['kl_effective']:.4f} [{run['kl_effective_low']:.4f}, {run['kl_effective_high']:.4f}]"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _verdict(run: Row) -> str:
    if run["unequal"] is None:
        return ""
    return "✓ yes" if run["unequal"] == "nothing" else f"✗ not {run['unequal'].replace('_', ' ')}"


def _tone(run: Row) -> str:
    return "" if run["unequal"] is None else "good" if run["unequal"] == "nothing" else "bad"


def _key_numbers(runs: list[Row]) -> tuple[KeyNumber, ...]:
    """Return how many more requests ran at once with the eviction that let in the most."""
    full, *evicted = runs
    if not evicted:
        return ()
    best = max(evicted, key=lambda run: run["observed_peak_running"])
    harm = f", at a KL of {best['kl_effective']:.4f}" if best.get("kl_effective") is not None else ""
    return (
        KeyNumber(
            f"{best['observed_peak_running']}, not {full['observed_peak_running']}",
            f"requests run at once in the same pool: {_name(best)}{harm}",
            f"observed in {NAMES.get(best['runtime'], best['runtime'])}, 1 run each",
        ),
    )
