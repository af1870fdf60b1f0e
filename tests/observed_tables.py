"""A small results folder in the shape of ``kvreclaim observe``'s, made by its own code from made-up runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kvreclaim.results import ResultsFolder
from kvreclaim.runtimes.matched import MatchedBudget, write_budgets
from kvreclaim.runtimes.observation import Observation, Scenario, Spread, write
from kvreclaim.runtimes.predict import Prediction, predict, rule_for
from kvreclaim.runtimes.vllm.naming import name_of
from kvreclaim.runtimes.vllm.options import Options

SCENARIO = Scenario("tiny-model", pool_blocks=10, block_size=32, requests=3, prompt_tokens=140, max_tokens=8)


def observation(options: Options, *, runtime: str = "vllm", wrong: bool = False) -> Observation:
    """A run that did as predicted, or with a block less at the end; in another runtime without prediction."""
    rule = rule_for(options, SCENARIO.block_size)
    told = predict(SCENARIO.settings, [140] * 3, 8, rule)
    known = runtime == "vllm"
    seen: dict[str, int | None] = dict(told.summary())
    if wrong:
        seen["free_blocks_end"] = 9
    unequal = ("free_blocks_end", "free_blocks_by_step") if wrong else ()
    if not known:
        seen |= dict.fromkeys(("blocks_freed", "preemptions", "free_blocks_end"))
    return Observation(
        runtime=runtime,
        policy=name_of(options),
        mode=options.mode if options.evicts else None,
        budget=options.budget,
        buffer=options.buffer,
        observed=seen,
        predicted=told.summary() if known else None,
        unequal=unequal if known else None,
        moved_bytes=(3 << 20 if options.mode == "pack" and options.evicts else 0) if known else None,
        seconds=1.5,
        steps=tuple(_steps(told, known, wrong)),
        evictions=tuple(_evictions(told, options)) if known else (),
    )


def _evictions(told: Prediction, options: Options) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "request": place,
            "event": 0,
            "policy": name_of(options),
            "mode": options.mode,
            "budget": options.budget,
            "tokens": event.slots,
            "held": event.slots_left,
            "blocks_freed": event.blocks_freed,
            "moved_bytes": 1 << 20 if options.mode == "pack" else 0,
            "predicted_tokens": event.slots,
            "predicted_held": event.slots_left,
            "predicted_blocks_freed": event.blocks_freed,
        }
        for (step, place), event in told.evictions.items()
    ]


def _steps(told: Prediction, known: bool, wrong: bool) -> list[dict[str, int]]:
    rows = []
    for step in told.steps:
        row = {"free_blocks": step.free_blocks, "scheduled": len(step.scheduled)}
        row |= {"running": step.running_after, "waiting": step.waiting_after, "preemptions": 0}
        beside = {f"predicted_{name}": value for name, value in row.items()} if known else {}
        rows.append({"step": step.number + 1, **row, **beside})
    rows[-1]["free_blocks"] -= wrong
    return rows


def write_observed(folder: Path, runtime: str = "vllm", wrong: bool = False) -> Path:
    """Write a folder as ``kvreclaim observe`` does: the full cache, one packed, one masked run."""
    chosen = [
        Options("none"),
        Options("streaming-llm", budget=40),
        Options("streaming-llm", budget=40, mode="mask"),
    ]
    runs = [observation(one, runtime=runtime, wrong=wrong and one.mode == "mask") for one in chosen]
    results = ResultsFolder(folder)
    write(results, SCENARIO, runs)
    parameters = {"model": "tiny-model", "requests": 3, "prompt_tokens": 140, "max_tokens": 8}
    parameters |= {"pool_blocks": 10, "block_size": 32, "runtime": runtime}
    results.write_run("observe", parameters, ["observed", "simulated"], [])
    return folder


def write_matched(folder: Path, wrong: bool = False) -> Path:
    """Write a folder as ``kvreclaim observe --matched`` does: one packed, one freed, one that keeps all."""
    chosen = [
        MatchedBudget(Options("h2o", budget=40), 0.72, 0.02, 0),
        MatchedBudget(Options("streaming-llm", budget=70, mode="free"), 0.5, 0.02, 1),
        MatchedBudget(Options("tova", budget=140), 0.0, 0.02, 3),
    ]
    kl = {"asked": Spread(0.03, 0.01, 0.05, 3), "effective": Spread(0.021, 0.0071, 0.044, 3)}
    runs = [observation(Options("none"))]
    runs += [
        replace(
            observation(one.options, wrong=wrong and one.options.mode == "free"),
            ratio=one.ratio,
            target_kl=one.target_kl,
            outside=one.outside,
            kl=kl,
        )
        for one in chosen[:2]
    ]
    results = ResultsFolder(folder)
    write(results, SCENARIO, runs)
    write_budgets(results, chosen)
    parameters = {"model": "tiny-model", "requests": 3, "prompt_tokens": 140, "max_tokens": 8}
    parameters |= {"pool_blocks": 10, "block_size": 32, "runtime": "vllm", "at_matched_quality": True}
    results.write_run("observe", parameters, ["observed", "simulated", "measured"], [])
    return folder
