"""The cells of a plan, in this process or in several, one thread each: the result is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch

from kvreclaim.capture import models
from kvreclaim.capture.measure.cells import Cells
from kvreclaim.capture.measure.plan import Part, Plan
from kvreclaim.capture.measure.prompts import Prompt
from kvreclaim.capture.measure.work import Measurer, one_thread
from kvreclaim.errors import InputError
from kvreclaim.processes import interrupts_held, worker_pool
from kvreclaim.results import ResultsFolder

_POLL_SECONDS = 0.2


def measure_here(plan: Plan, folder: ResultsFolder, model: Any, advance: Callable[[], None]) -> None:
    """Measure what is missing of a plan with a loaded model, calling ``advance`` after each cell."""
    measurer = Measurer(plan, Cells(folder), model, advance)
    with one_thread():
        for part in plan.parts(jobs=1):
            measurer.sweep(part)
            measurer.match(part[0])


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
            for _ in _rounds(pool, plan, jobs):
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


_measurer: Measurer
"""A worker's own, for the tasks that it is sent."""


def _begin(plan: Plan, folder: ResultsFolder, done: Any) -> None:
    global _measurer  # a process pool hands its workers no other state
    torch.set_num_threads(1)
    model, _ = models.load(plan.model)
    _measurer = Measurer(plan, Cells(folder), model, lambda: done.put(None))


def _sweep(part: Part) -> None:
    _measurer.sweep(part)


def _match(prompt: Prompt) -> None:
    _measurer.match(prompt)
