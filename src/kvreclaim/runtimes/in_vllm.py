"""A scenario in vLLM, without eviction and with it, each run beside its prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kvreclaim.runtimes.before_vllm import check, check_centres, check_predicted, prompts_of
from kvreclaim.runtimes.observation import Mask, Observation, Row, Scenario
from kvreclaim.runtimes.predict import (
    Prediction,
    beside,
    equal,
    masks_of,
    place_of,
    predict,
    rule_for,
)
from kvreclaim.runtimes.vllm.engine import Engine
from kvreclaim.runtimes.vllm.naming import name_of
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.runtimes.vllm.records import EvictionRecord, ObservedRun, as_row
from kvreclaim.runtimes.vllm.versions import check_version
from kvreclaim.scheduling import SchedulerSettings


def observe(
    scenario: Scenario, chosen: Sequence[Options], report: Callable[[int], None] = lambda _: None
) -> list[Observation]:
    """Run a scenario on one engine: with the full cache first, then as each option says.

    Parameters
    ----------
    scenario
        The requests and the pool.
    chosen
        Options that evict, without a copy budget.
    report
        Called with the number of runs done.

    Raises
    ------
    InputError
        If vLLM is missing or not supported, refuses the settings, or an option does not fit the model.
    """
    check(scenario, chosen)
    check_version()
    check_centres(scenario, chosen)
    ids = [prompt.ids for prompt in prompts_of(scenario)]
    with Engine(
        scenario.path,
        pool_blocks=scenario.pool_blocks,
        block_size=scenario.block_size,
        max_model_len=scenario.request_tokens,
        max_num_seqs=scenario.max_num_seqs,
        max_num_batched_tokens=scenario.max_num_batched_tokens,
    ) as engine:
        observations = []
        for done, options in enumerate([Options("none"), *chosen]):
            observations.append(observe_run(engine, ids, options, scenario.max_tokens, scenario.settings))
            report(done + 1)
    return observations


def observe_run(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    options: Options,
    max_tokens: int,
    settings: SchedulerSettings,
) -> Observation:
    """Run prompts on an engine, and predict the run.

    Parameters
    ----------
    engine
        At rest.
    prompts
        Token ids of each.
    options
        What is evicted, without a copy budget.
    max_tokens
        Tokens that each request generates.
    settings
        The engine's pool and limits.

    Raises
    ------
    InputError
        If the options do not fit the model, have a copy budget, or a request does not fit the pool.
    """
    check_predicted([options])
    run = engine.run(prompts, replace(options, record_masks=options.evicts), max_tokens)
    rule = rule_for(options, settings.block_size, masks_of(run))
    prediction = predict(settings, [len(prompt) for prompt in prompts], max_tokens, rule)
    return replace(_observation(options, run, prediction), masks=_masks_after_prefill(run, prompts))


def _masks_after_prefill(run: ObservedRun, prompts: Sequence[Sequence[int]]) -> dict[str, list[Mask]]:
    """Return what is kept of each prompt and what attention sees of it; nothing where one stays whole."""
    first: dict[int, EvictionRecord] = {}
    for eviction in run.evictions:
        place = place_of(eviction.request)
        if eviction.computed_tokens == len(prompts[place]):  # again the same after a preemption
            first.setdefault(place, eviction)
    if len(first) < len(prompts):
        return {}
    found = [first[place] for place in range(len(prompts))]
    return {
        "asked": [eviction.asked for eviction in found if eviction.asked is not None],
        "effective": [eviction.effective for eviction in found if eviction.effective is not None],
    }


def _observation(options: Options, run: ObservedRun, prediction: Prediction) -> Observation:
    return Observation(
        runtime="vllm",
        policy=name_of(options),
        mode=options.mode if options.evicts else None,
        budget=options.budget,
        buffer=options.buffer,
        observed=run.summary(),
        predicted=prediction.summary(),
        unequal=tuple(name for name, same in equal(prediction, run).items() if not same),
        moved_bytes=run.moved_bytes,
        seconds=run.seconds,
        steps=tuple(_steps(run, prediction)),
        evictions=tuple(_evictions(run, prediction, name_of(options))),
    )


def _evictions(run: ObservedRun, prediction: Prediction, policy: str) -> Iterator[Row]:
    """Yield the observed evictions with the predicted ones beside; a predicted one may stand alone."""
    for pair in beside(prediction, run):
        row: Row = {} if pair.observed is None else as_row(pair.observed)
        row |= {"step": pair.step, "request": pair.place, "policy": policy, "predicted_blocks_freed": 0}
        if pair.predicted is not None:
            row |= {
                "predicted_tokens": pair.predicted.slots,
                "predicted_held": pair.predicted.slots_left,
                "predicted_blocks_freed": pair.predicted.blocks_freed,
            }
        yield row


def _steps(run: ObservedRun, prediction: Prediction) -> list[Row]:
    """Return the observed steps with the predicted ones beside; one of the two may be longer."""
    rows: list[Row] = [{"step": number + 1} for number in range(max(len(run.steps), len(prediction.steps)))]
    for row, record in zip(rows, run.steps, strict=False):
        row.update(as_row(record), step=row["step"])
    preempted = 0
    for row, step in zip(rows, prediction.steps, strict=False):
        preempted += len(step.preempted)
        row.update(
            predicted_free_blocks=step.free_blocks,
            predicted_scheduled=len(step.scheduled),
            predicted_running=step.running_after,
            predicted_waiting=step.waiting_after,
            predicted_preemptions=preempted,
        )
    return rows
