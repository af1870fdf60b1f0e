"""A scenario in vLLM, without eviction and with it, each run beside its prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvreclaim.errors import InputError
from kvreclaim.runtimes.observation import Observation, Row, Scenario
from kvreclaim.runtimes.predict import (
    Prediction,
    equal,
    masks_of,
    needs_masks,
    place_of,
    predict,
    rule_for,
)
from kvreclaim.runtimes.vllm.engine import Engine
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.runtimes.vllm.records import ObservedRun, as_row


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
    for options in chosen:
        if options.copy_budget is not None:
            raise InputError("what a copy budget leaves is not predicted: leave out copy_budget")
    observations = []
    with Engine(
        scenario.model,
        pool_blocks=scenario.pool_blocks,
        block_size=scenario.block_size,
        max_model_len=scenario.request_tokens,
        max_num_seqs=scenario.max_num_seqs,
        max_num_batched_tokens=scenario.max_num_batched_tokens,
    ) as engine:
        tokenizer = engine.llm.get_tokenizer()
        prompts = scenario.prompts(lambda text: tokenizer.encode(text, add_special_tokens=False))
        for done, options in enumerate([Options("none"), *chosen]):
            asked = replace(options, record_masks=needs_masks(options))
            run = engine.run(prompts, asked, scenario.max_tokens)
            rule = rule_for(options, scenario.block_size, masks_of(run))
            lengths = [len(prompt) for prompt in prompts]
            prediction = predict(scenario.settings, lengths, scenario.max_tokens, rule)
            observations.append(_observation(options, run, prediction))
            report(done + 1)
    return observations


def _observation(options: Options, run: ObservedRun, prediction: Prediction) -> Observation:
    return Observation(
        runtime="vllm",
        policy=options.policy,
        mode=options.mode if options.evicts else None,
        budget=options.budget,
        buffer=options.buffer,
        observed=run.summary(),
        predicted=prediction.summary(),
        unequal=tuple(name for name, same in equal(prediction, run).items() if not same),
        moved_bytes=run.moved_bytes,
        seconds=run.seconds,
        steps=tuple(_steps(run, prediction)),
        evictions=tuple(
            {**as_row(eviction), "request": place_of(eviction.request)} for eviction in run.evictions
        ),
    )


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
