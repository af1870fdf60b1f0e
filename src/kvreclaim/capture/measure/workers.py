"""The cells of a plan, in this process or in several, one thread each: the result is the same."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from typing import Any

import torch

from kvreclaim.capture import models
from kvreclaim.capture.measure.cells import Cells
from kvreclaim.capture.measure.plan import Part, Plan
from kvreclaim.capture.measure.prompts import Prompt
from kvreclaim.capture.measure.work import Measurer, one_thread
from kvreclaim.errors import InputError
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
    # Spawned, not forked: torch's threads would not survive that.
    context = get_context("spawn")
    reports = context.SimpleQueue()
    others = set(active_children())
    pool = ProcessPoolExecutor(jobs, context, _begin, (plan, folder, reports))
    try:
        for _ in _finished(pool, plan, jobs):
            while not reports.empty():
                reports.get()
                advance()
    except BaseException as error:
        for worker in set(active_children()) - others:
            worker.terminate()
        if isinstance(error, BrokenProcessPool):
            raise InputError(
                "a process died, perhaps for want of memory: run the same again, with fewer --jobs, to go on"
            ) from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _finished(pool: ProcessPoolExecutor, plan: Plan, jobs: int) -> Any:
    """Yield now and then until all is done: each prompt is matched as soon as all its parts are swept."""
    running: dict[Future[None], Prompt | None] = {
        pool.submit(_sweep, part): part[0] for part in plan.parts(jobs)
    }
    parts_left = Counter(prompt.name for prompt in running.values() if prompt is not None)
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


def _begin(plan: Plan, folder: ResultsFolder, reports: Any) -> None:
    global _measurer  # a process pool hands its workers no other state
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    model, _ = models.load(plan.model)
    _measurer = Measurer(plan, Cells(folder), model, lambda: reports.put(None))


def _die_with_parent() -> None:
    """End this process when the parent does, however it ends: nobody else would."""
    parent = parent_process()
    assert parent is not None  # noqa: S101  # a worker has one
    parent.join()
    os._exit(1)


def _sweep(part: Part) -> None:
    _measurer.sweep(part)


def _match(prompt: Prompt) -> None:
    _measurer.match(prompt)
