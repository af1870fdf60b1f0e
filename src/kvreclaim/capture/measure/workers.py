"""The cells and needle trials of a plan, in this process or in several, one thread each.

The result is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import chain
from multiprocessing import get_context
from typing import Any

import torch

from kvreclaim.capture import models
from kvreclaim.capture.measure.cells import Cells
from kvreclaim.capture.measure.needles import Attempts, NeedleMeasurer
from kvreclaim.capture.measure.plan import Part, Plan
from kvreclaim.capture.measure.work import Measurer, one_thread
from kvreclaim.capture.quality.needle import Trial
from kvreclaim.errors import InputError
from kvreclaim.processes import interrupts_held, worker_pool
from kvreclaim.prompts import Prompt
from kvreclaim.results import ResultsFolder

_POLL_SECONDS = 0.2


def measure_here(
    plan: Plan, folder: ResultsFolder, model: Any, tokenizer: Any, advance: Callable[[], None]
) -> None:
    """Measure what is missing of a plan with a loaded model, calling ``advance`` for each mask judged."""
    measurer = Measurer(plan, Cells(folder), model, advance)
    with one_thread():
        for part in plan.parts(jobs=1):
            measurer.sweep(part)
            measurer.match(part[0])
        if plan.needles is not None:
            seeker = NeedleMeasurer(
                plan.needles, Attempts(folder, plan.needles.ratio), model, tokenizer, advance
            )
            for trial in plan.needles.trials:
                seeker.attempt(trial)


def measure_in_processes(plan: Plan, folder: ResultsFolder, jobs: int, advance: Callable[[], None]) -> None:
    """Measure what is missing of a plan in so many processes, each with a model of its own.

    Raises
    ------
    InputError
        If a process dies, or as `measure_here` does.
    """
    done = get_context("spawn").SimpleQueue()
    try:
        with worker_pool(jobs, partial(_begin, plan, folder, done)) as pool:
            for _ in chain(_rounds(pool, plan, jobs), _trials(pool, plan)):
                while not done.empty():
                    done.get()
                    advance()
    except BrokenProcessPool as error:
        raise InputError(
            "a process died, perhaps for want of memory: run the same again, with fewer --jobs, to go on"
        ) from error


def _rounds(pool: ProcessPoolExecutor, plan: Plan, jobs: int) -> Iterator[None]:
    """Yield now and then until all is done: each prompt is matched as soon as all its parts are swept."""
    running: dict[Future[None], Prompt | None] = {}
    parts_left: Counter[str] = Counter()
    with interrupts_held():
        for part in plan.parts(jobs):
            running[pool.submit(_sweep, part)] = part[0]
            parts_left[part[0].name] += 1
    while running:
        ended, _ = wait(running, _POLL_SECONDS, FIRST_COMPLETED)
        for future in ended:
            prompt = running.pop(future)
            future.result()
            if prompt is not None:
                parts_left[prompt.name] -= 1
                if not parts_left[prompt.name]:
                    running[pool.submit(_match, prompt)] = None
        yield


def _trials(pool: ProcessPoolExecutor, plan: Plan) -> Iterator[None]:
    """Yield now and then until every needle trial is attempted."""
    running = {pool.submit(_attempt, trial) for trial in (plan.needles.trials if plan.needles else ())}
    while running:
        ended, running = wait(running, _POLL_SECONDS, FIRST_COMPLETED)
        for future in ended:
            future.result()
        yield


_measurer: Measurer
_seeker: NeedleMeasurer
"""A worker's own, for the tasks that it is sent."""


def _begin(plan: Plan, folder: ResultsFolder, done: Any) -> None:
    global _measurer, _seeker  # a process pool hands its workers no other state
    torch.set_num_threads(1)
    model, tokenizer = models.load(plan.model)

    def advance() -> None:
        done.put(None)

    _measurer = Measurer(plan, Cells(folder), model, advance)
    if plan.needles is not None:
        attempts = Attempts(folder, plan.needles.ratio)
        _seeker = NeedleMeasurer(plan.needles, attempts, model, tokenizer, advance)


def _sweep(part: Part) -> None:
    _measurer.sweep(part)


def _match(prompt: Prompt) -> None:
    _measurer.match(prompt)


def _attempt(trial: Trial) -> None:
    _seeker.attempt(trial)
