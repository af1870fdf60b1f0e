"""`measure`: many policies on a real model, into a results folder that can be gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, SupportsIndex

from kvreclaim.capture import models
from kvreclaim.capture.inside.checks import check_length
from kvreclaim.capture.matched.ledger import MatchedRow
from kvreclaim.capture.measure.cells import CELLS, Cells
from kvreclaim.capture.measure.maps import block_maps
from kvreclaim.capture.measure.needles import (
    NEEDLES,
    Attempts,
    NeedleRow,
    attempts_left,
    check_tasks,
    needle_plan,
    needle_rows,
)
from kvreclaim.capture.measure.plan import Plan, check_policies, target_of
from kvreclaim.capture.measure.prompts import cut_prompts, read_texts, topics_text
from kvreclaim.capture.measure.settings import Settings
from kvreclaim.capture.measure.tables import (
    MatchedPromptRow,
    MeasuredRow,
    csv_of,
    matched_prompt_rows,
    matched_rows,
    measured_rows,
)
from kvreclaim.capture.measure.work import cells_left
from kvreclaim.capture.measure.workers import measure_here, measure_in_processes
from kvreclaim.layout import KVGeometry
from kvreclaim.results import SCHEMA, ResultsFolder
from kvreclaim.validate import positive_int

COMMAND = "measure"
PACKAGES = ("numpy", "torch", "transformers", "kvpress")

Progress = Callable[[int, int], None]
"""Called with the masks judged so far (cells, and policies on needle trials), and how many were missing."""


@dataclass(frozen=True)
class Measurement:
    """What a measurement gave.

    Parameters
    ----------
    measured
        A row a cell of the sweep, block size and kind of table.
    matched
        Medians over prompts at matched quality; empty where there is no target.
    matched_prompts
        The same prompt by prompt, with the quality of the masks made there.
    needles
        Needles found, a row a task, seen and unseen, and policy; empty where none were hidden.
    """

    measured: tuple[MeasuredRow, ...]
    matched: tuple[MatchedRow, ...]
    matched_prompts: tuple[MatchedPromptRow, ...]
    needles: tuple[NeedleRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as plain, JSON-ready values."""
        return asdict(self)


def measure(
    settings: Settings,
    out: str | PathLike[str],
    jobs: SupportsIndex = 1,
    progress: Progress = lambda _done, _all: None,
) -> Measurement:
    """Measure policies on a model: what each keeps, what that frees, and what it costs in quality.

    Every cell (prompt, policy, ratio) and every needle trial is saved as it is done, and the same call goes
    on where it was interrupted. The folder gets ``masks/``, ``measured.csv``, ``matched.csv``,
    ``matched_prompts.csv``, ``needles.csv``, ``interactive_data.json`` and ``run.json``. Needles may be
    hidden in a later call, or more of them: nothing else depends on them.

    Parameters
    ----------
    settings
        What to measure.
    out
        The results folder.
    jobs
        Processes of one thread each; the result does not depend on them. With more than one, a script must
        keep its own work under ``if __name__ == "__main__"``, as processes are spawned.
    progress
        Called as cells are done.

    Raises
    ------
    InputError
        If a policy or task is unknown or can't be recorded, a text is too short, a prompt longer than the
        model's context, the model can't be loaded or audited, the folder holds other results, or a process
        dies.
    """
    workers = positive_int(jobs, "jobs")
    folder = ResultsFolder(out)
    folder.claim(COMMAND)
    check_policies(settings.policies, settings.ratios, settings.context)
    if settings.needles is not None:
        check_tasks(settings.needles.tasks)
        check_policies(settings.policies, (settings.needles.ratio,), settings.needles.context)
    texts = read_texts(settings.texts) if settings.texts else topics_text()
    model, tokenizer = models.load(settings.model)
    check_length(model, settings.context + settings.next_tokens)
    prompts = cut_prompts(texts, tokenizer, settings.prompts, settings.context, settings.next_tokens)
    needles = None
    if settings.needles is not None:
        needles = needle_plan(settings.needles, settings.policies, texts, model, tokenizer)
    plan = Plan(settings.model, settings.policies, settings.ratios, prompts, target_of(settings), needles)
    geometry = models.served_geometry(settings.model, model)
    parameters = _parameters(settings, plan, geometry)
    if any((folder.path / part).exists() for part in (CELLS, NEEDLES)):
        folder.begin_run(COMMAND, parameters, kinds=["measured"], packages=PACKAGES, replaceable=["needles"])
    else:  # a run that ended before its first result binds none
        folder.write_run(COMMAND, parameters, kinds=["measured"], packages=PACKAGES)
    missing = cells_left(plan, Cells(folder))
    if needles is not None:
        missing += attempts_left(needles, Attempts(folder, needles.ratio))
    report = _Counted(missing, progress)
    if missing and workers == 1:
        measure_here(plan, folder, model, tokenizer, report)
    elif missing:
        del model  # each process loads its own
        measure_in_processes(plan, folder, workers, report)
    return _write_tables(settings, plan, folder, geometry)


class _Counted:
    """Tells how many masks are judged each time that one is."""

    def __init__(self, missing: int, progress: Progress) -> None:
        self._missing, self._progress, self._done = missing, progress, 0
        progress(0, missing)

    def __call__(self) -> None:
        self._done += 1
        self._progress(self._done, self._missing)


def _parameters(settings: Settings, plan: Plan, geometry: KVGeometry) -> dict[str, Any]:
    """Return what makes a measurement the same as another: all that its numbers depend on but versions."""
    target = plan.target if plan.target is None or isinstance(plan.target, float) else asdict(plan.target)
    return {
        **asdict(settings),
        "target": target,
        "geometry": asdict(geometry),
        "prompt_texts": [prompt.described() for prompt in plan.prompts],
    }


def _write_tables(settings: Settings, plan: Plan, folder: ResultsFolder, geometry: KVGeometry) -> Measurement:
    cells, block_size = Cells(folder), settings.block_sizes[0]
    measured = tuple(measured_rows(plan, cells, settings.block_sizes, geometry))
    folder.write("measured.csv", csv_of(MeasuredRow, measured))
    matched = tuple(matched_rows(plan, cells, block_size, geometry, settings.request_tokens))
    matched_prompts = tuple(matched_prompt_rows(plan, cells))
    folder.write("matched.csv", csv_of(MatchedRow, matched))
    folder.write("matched_prompts.csv", csv_of(MatchedPromptRow, matched_prompts))
    needles: tuple[NeedleRow, ...] = ()
    if plan.needles is not None:
        needles = tuple(needle_rows(plan.needles, Attempts(folder, plan.needles.ratio)))
    folder.write("needles.csv", csv_of(NeedleRow, needles))
    maps = {"schema": SCHEMA, "block_maps": block_maps(plan, cells, block_size)}
    folder.write("interactive_data.json", json.dumps(maps, separators=(",", ":"), allow_nan=False) + "\n")
    folder.count_rows()
    return Measurement(measured, matched, matched_prompts, needles)
