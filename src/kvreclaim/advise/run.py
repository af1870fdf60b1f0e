"""`advise`: candidates measured on the user's model and text, and one of them recommended."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from os import PathLike
from typing import Any, SupportsIndex

from kvreclaim.advise.choose import Choice, choose, pareto_set
from kvreclaim.advise.evaluation import load_evaluation
from kvreclaim.advise.losses import Losses, continuation_losses, evaluated_losses, retrieval_losses
from kvreclaim.advise.rows import Advice, AdviceRow, rows_of
from kvreclaim.advise.settings import CONTINUATION, RETRIEVAL, AdviceSettings, candidates
from kvreclaim.capture import models
from kvreclaim.capture.inside.checks import check_length
from kvreclaim.capture.measure.cells import CELLS, Cells
from kvreclaim.capture.measure.maps import block_maps
from kvreclaim.capture.measure.plan import Plan, check_policies
from kvreclaim.capture.measure.prompts import cut_prompts, read_texts, topics_text
from kvreclaim.capture.measure.run import PACKAGES
from kvreclaim.capture.measure.tables import csv_of
from kvreclaim.capture.measure.work import cells_left, one_thread
from kvreclaim.capture.measure.workers import measure_here, measure_in_processes
from kvreclaim.results import SCHEMA, ResultsFolder, as_json
from kvreclaim.validate import positive_int

COMMAND = "advise"
_REPLACEABLE = ("pool_gib", "trials")  # nothing saved depends on them: a trial is saved by its number

Progress = Callable[[int, int], None]
"""Called with the cells measured so far, and how many were missing at first."""


def advise(
    settings: AdviceSettings,
    out: str | PathLike[str],
    jobs: SupportsIndex = 1,
    progress: Progress = lambda _done, _all: None,
) -> Advice:
    """Measure candidates on a model and text, and recommend one.

    Every candidate evicts to the same ratio. Eight-bit caches stand beside them. The folder gets ``masks/``,
    ``cells/``, ``losses/``, ``advice.csv``, ``advice.json``, ``interactive_data.json`` and ``run.json``; the
    same call goes on where it was interrupted.

    Parameters
    ----------
    settings
        What is asked.
    out
        The results folder.
    jobs
        Processes that measure masks, one thread each.
    progress
        Called as cells are done.

    Raises
    ------
    InputError
        If a candidate is unknown or can't serve the table, a text is too short, the model can't be loaded,
        the evaluation fails, or the folder holds other results.
    """
    workers = positive_int(jobs, "jobs")
    evaluation = None if settings.matters in (CONTINUATION, RETRIEVAL) else load_evaluation(settings.matters)
    folder = ResultsFolder(out)
    folder.claim(COMMAND)
    policies = candidates(settings)
    check_policies(policies, (settings.ratio,), settings.context)
    texts = read_texts(settings.texts) if settings.texts else topics_text()
    model, tokenizer = models.load(settings.model)
    check_length(model, settings.context + settings.next_tokens)
    prompts = cut_prompts(texts, tokenizer, settings.prompts, settings.context, settings.next_tokens)
    plan = Plan(settings.model, policies, (settings.ratio,), prompts, target=None)
    geometry = models.served_geometry(settings.model, model)
    if (folder.path / CELLS).exists():
        folder.begin_run(
            COMMAND,
            _parameters(settings, plan),
            kinds=["measured"],
            packages=PACKAGES,
            replaceable=_REPLACEABLE,
        )
    else:  # a run that ended before its first result binds none
        folder.write_run(COMMAND, _parameters(settings, plan), kinds=["measured"], packages=PACKAGES)
    _measure(plan, folder, model, tokenizer, workers, progress)
    losses = Losses(plan, folder, model, tokenizer, settings)
    with one_thread():
        continuation = continuation_losses(losses)
        if settings.matters == RETRIEVAL:
            judged = retrieval_losses(losses, " ".join(texts.values()))
        elif evaluation is not None:
            judged = evaluated_losses(losses, evaluation)
        else:
            judged = continuation
    rows, options = rows_of(settings, plan, Cells(folder), continuation, judged, geometry)
    judged_on = "needle" if settings.matters == RETRIEVAL else "prompt"
    choice = choose(options, settings.wanted, settings.copy_budget, judged_on)
    advice = Advice(_marked(rows, pareto_set(options), choice), choice)
    folder.write("advice.csv", csv_of(AdviceRow, advice.rows))
    folder.write("advice.json", as_json(advice.to_dict()))
    maps = {"schema": SCHEMA, "block_maps": block_maps(plan, Cells(folder), settings.block_size)}
    folder.write("interactive_data.json", json.dumps(maps, separators=(",", ":"), allow_nan=False) + "\n")
    folder.count_rows()
    return advice


def _measure(
    plan: Plan, folder: ResultsFolder, model: Any, tokenizer: Any, workers: int, progress: Progress
) -> None:
    missing, done = cells_left(plan, Cells(folder)), 0

    def advance() -> None:
        nonlocal done
        done += 1
        progress(done, missing)

    progress(0, missing)
    if missing and workers == 1:
        measure_here(plan, folder, model, tokenizer, advance)
    elif missing:
        measure_in_processes(plan, folder, workers, advance)


def _marked(rows: list[AdviceRow], pareto: set[str], choice: Choice) -> tuple[AdviceRow, ...]:
    return tuple(row.marked(row.candidate in pareto, row.candidate == choice.recommended) for row in rows)


def _parameters(settings: AdviceSettings, plan: Plan) -> dict[str, Any]:
    texts = [prompt.described() for prompt in plan.prompts]
    return {**asdict(settings), "policies": list(plan.policies), "prompt_texts": texts}
