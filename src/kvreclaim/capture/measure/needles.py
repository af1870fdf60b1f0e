"""Needle trials in a measurement: attempted one by one, each saved once it is done, and counted.

Each task is tried with the question seen by the policies, which evict at the end of a prompt that holds it,
and unseen. A policy is tried only where the full cache solves the trial.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvreclaim.capture.inside.attention_layers import model_name
from kvreclaim.capture.inside.checks import check_length
from kvreclaim.capture.measure.effective import attended
from kvreclaim.capture.measure.settings import Needles
from kvreclaim.capture.prefill import capture
from kvreclaim.capture.presses import make
from kvreclaim.capture.quality.haystack import Haystack
from kvreclaim.capture.quality.needle import TASKS, Trial
from kvreclaim.capture.quality.retrieval import Attempt, attempt, count
from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask, MaskMetadata
from kvreclaim.results import ResultsFolder, as_json

SEEN_AND_UNSEEN = (True, False)
NEEDLES = "needles"


@dataclass(frozen=True)
class NeedlePlan:
    """Trials, and the policies to try on them.

    Parameters
    ----------
    policies
        Names of presses.
    ratio
        Compression ratio of each.
    trials
        In the order of the work: a trial of every task, then the next, so that any part of it is balanced.
    """

    policies: tuple[str, ...]
    ratio: float
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class NeedleRow:
    """A row of ``needles.csv``: a policy's count in one task.

    Parameters
    ----------
    task, question_seen, policy, ratio, trials, full_solved, solved
        As in `kvreclaim.capture.quality.retrieval.RetrievalCell`.
    share, low, high, retained, needle_retained
        The same; None where the full cache solves no trial, so that no policy was tried.
    """

    task: str
    question_seen: bool
    policy: str
    ratio: float
    trials: int
    full_solved: int
    solved: int
    share: float | None
    low: float | None
    high: float | None
    retained: float | None
    needle_retained: float | None


def check_tasks(tasks: Sequence[str]) -> None:
    """Raise InputError if there is no needle task of a name."""
    for task in tasks:
        if task not in TASKS:
            raise InputError(f"no needle task {task!r}: pass one of {', '.join(TASKS)}")


def needle_plan(
    needles: Needles, policies: tuple[str, ...], texts: Mapping[str, str], model: Any, tokenizer: Any
) -> NeedlePlan:
    """Hide the needles in texts, which are read as one.

    Raises
    ------
    InputError
        If there is no task of a name, the texts or the prompts are too short, or a prompt with its answer is
        longer than the model's context.
    """
    check_tasks(needles.tasks)
    haystack = Haystack(tokenizer, "\n\n".join(texts.values()))
    trials = tuple(
        haystack.trial(TASKS[task], needles.context, seen, number)
        for number in range(needles.trials)
        for task in needles.tasks
        for seen in SEEN_AND_UNSEEN
    )
    most = max(len(trial.next_ids) + trial.answer_tokens for trial in trials)
    check_length(model, needles.context + most)
    return NeedlePlan(policies, needles.ratio, trials)


class Attempts:
    """The attempts of a results folder: ``needles/``, a file a trial, with a hash of what was read.

    Parameters
    ----------
    folder
        The folder.
    ratio
        Compression ratio of the policies.
    """

    def __init__(self, folder: ResultsFolder, ratio: float) -> None:
        self._folder, self._ratio = folder, ratio

    def has(self, trial: Trial) -> bool:
        """Say whether a trial is done."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return bool(self._of(trial))
        return False

    def save(self, trial: Trial, attempts: Sequence[Attempt]) -> None:
        """Write a trial's file, whole or not at all."""
        record = {"trial_sha256": _digest(trial), "attempts": [asdict(one) for one in attempts]}
        self._folder.write(self._name(trial), as_json(record))

    def of(self, trial: Trial) -> list[Attempt]:
        """Return the attempts of a trial that is done; InputError if they can't be read."""
        try:
            return self._of(trial)
        except (OSError, ValueError, KeyError, TypeError) as error:
            file = self._folder.path / self._name(trial)
            raise InputError(f"{file}: is no needle trial; delete it and measure again") from error

    def _of(self, trial: Trial) -> list[Attempt]:
        record = json.loads((self._folder.path / self._name(trial)).read_bytes())
        if record["trial_sha256"] != _digest(trial):
            raise ValueError("of another text")
        return [Attempt(**one) for one in record["attempts"]]

    def _name(self, trial: Trial) -> str:
        seen = "seen" if trial.question_seen else "unseen"
        where = Path(NEEDLES) / f"{trial.task}-{seen}" / f"{len(trial.prompt_ids)}-ratio-{self._ratio!r}"
        return str(where / f"trial-{trial.number}.json")


class NeedleMeasurer:
    """Attempts the trials of a plan that are not there yet.

    Parameters
    ----------
    plan
        What to attempt.
    attempts
        Where to save it.
    model, tokenizer
        The loaded model.
    done
        Called once a policy after each trial, whether the policies could be tried or not.
    """

    def __init__(
        self, plan: NeedlePlan, attempts: Attempts, model: Any, tokenizer: Any, done: Callable[[], None]
    ) -> None:
        self._plan, self._attempts, self._done = plan, attempts, done
        self._model, self._tokenizer = model, tokenizer

    def attempt(self, trial: Trial) -> None:
        """Attempt a trial with the full cache and, where that solves it, under each policy's mask."""
        if self._attempts.has(trial):
            return
        tokens, ratio = len(trial.prompt_ids), self._plan.ratio
        presses = {policy: make(attended(policy).press, ratio, tokens) for policy in self._plan.policies}
        captured = capture(self._model, presses, torch.tensor([trial.prompt_ids], device=self._model.device))
        name = model_name(self._model)
        masks = {
            policy: KeepMask(
                attended(policy).mask(mask).array, policy, MaskMetadata(name, policy, ratio, tokens)
            )
            for policy, mask in captured.masks.items()
        }
        self._attempts.save(trial, attempt(self._model, self._tokenizer, captured.cache, trial, masks))
        for _ in masks:
            self._done()


def attempts_left(plan: NeedlePlan, attempts: Attempts) -> int:
    """Count the policies on the trials of a plan that are not there yet."""
    return len(plan.policies) * sum(not attempts.has(trial) for trial in plan.trials)


def needle_rows(plan: NeedlePlan, attempts: Attempts) -> list[NeedleRow]:
    """Count the attempts of a plan: a row for each task, seen and unseen, and policy."""
    made = [one for trial in plan.trials for one in attempts.of(trial)]
    cells = {(cell.task, cell.question_seen, cell.policy): asdict(cell) for cell in count(made)}
    rows = []
    for task, seen in dict.fromkeys((trial.task, trial.question_seen) for trial in plan.trials):
        trials = sum((trial.task, trial.question_seen) == (task, seen) for trial in plan.trials)
        untried = {"task": task, "question_seen": seen, "ratio": plan.ratio, "trials": trials}
        untried |= dict.fromkeys(("full_solved", "solved"), 0)
        untried |= dict.fromkeys(("share", "low", "high", "retained", "needle_retained"))
        rows += [
            NeedleRow(**cells.get((task, seen, policy), {**untried, "policy": policy}))
            for policy in plan.policies
        ]
    return rows


def _digest(trial: Trial) -> str:
    """Return the SHA-256 of a trial's tokens as 64-bit integers."""
    return hashlib.sha256(np.array([*trial.prompt_ids, *trial.next_ids], "<i8").tobytes()).hexdigest()
