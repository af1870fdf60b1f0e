"""Retrieval under keep masks: trials attempted, counted, and compared only where they can be.

A trial that the full cache fails says nothing of a policy, so a policy's share is of the trials that the full
cache solves. Two policies are ranked only where both were tried on enough of those and their intervals are
apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch

from kvreclaim.capture.quality.needle import Trial
from kvreclaim.capture.quality.replay import agreed, generate
from kvreclaim.keep import KeepMask
from kvreclaim.statistics import Interval, wilson_interval

FULL = "full"
"""The policy's name in an attempt with the full cache."""

LEAST_SOLVED = 50
"""Trials that the full cache must have solved before two policies are ranked."""


@dataclass(frozen=True)
class Attempt:
    """What came of one trial under one keep mask.

    Parameters
    ----------
    task, question_seen, number
        The trial.
    policy
        The mask's policy; `FULL` for the full cache.
    ratio
        Compression ratio asked for; 0 for the full cache, None where the mask does not say.
    retained
        Fraction of KV pairs that the mask keeps.
    needle_retained
        The same among the tokens of the needles asked for.
    answers, recalled
        Values asked for, and how many of them the text holds that the model gave.
    """

    task: str
    question_seen: bool
    number: int
    policy: str
    ratio: float | None
    retained: float
    needle_retained: float
    answers: int
    recalled: int

    @property
    def solved(self) -> bool:
        """Whether every value asked for was given."""
        return self.recalled == self.answers


@dataclass(frozen=True)
class RetrievalCell:
    """A policy's count in one task.

    Parameters
    ----------
    task, question_seen, policy, ratio
        What was counted.
    trials
        Trials attempted with the full cache.
    full_solved
        Those of them that it solved, on which the policy was tried.
    solved
        Those of them that the policy solved too.
    share, low, high
        ``solved / full_solved`` and its 95 % Wilson interval.
    retained, needle_retained
        Means over the trials that the policy was tried on.
    """

    task: str
    question_seen: bool
    policy: str
    ratio: float | None
    trials: int
    full_solved: int
    solved: int
    share: float
    low: float
    high: float
    retained: float
    needle_retained: float


@dataclass(frozen=True)
class Separation:
    """Two policies whose shares in one task, at one ratio, have intervals apart."""

    task: str
    question_seen: bool
    ratio: float | None
    better: str
    worse: str


def attempt(
    model: Any, tokenizer: Any, cache: Any, trial: Trial, masks: Mapping[str, KeepMask]
) -> list[Attempt]:
    """Attempt a trial with its full cache and, if that solves it, under each keep mask.

    Parameters
    ----------
    model, tokenizer
        A decoder-only model of transformers and its tokenizer.
    cache
        The full cache of ``trial.prompt_ids``.
    masks
        By policy; made on the same prompt.

    Returns
    -------
    list of Attempt
        The full cache's first, alone where it failed.

    Raises
    ------
    InputError
        If the cache or a mask is not of this prompt's shape.
    """
    attempts = [_attempt(model, tokenizer, cache, trial, FULL, None)]
    if attempts[0].solved:
        attempts += [_attempt(model, tokenizer, cache, trial, name, mask) for name, mask in masks.items()]
    return attempts


def count(attempts: Iterable[Attempt]) -> list[RetrievalCell]:
    """Count attempts by task, policy and ratio; the full cache's own decide which trials count."""
    trials: Counter[tuple[str, bool]] = Counter()
    cells: dict[tuple[str, bool, str, float | None], list[Attempt]] = {}
    for one in attempts:
        if one.policy == FULL:
            trials[one.task, one.question_seen] += 1
        else:
            cells.setdefault((one.task, one.question_seen, one.policy, one.ratio), []).append(one)
    return [_cell(members, trials[task, seen]) for (task, seen, _, _), members in cells.items()]


def separated(cells: Sequence[RetrievalCell], least_solved: int = LEAST_SOLVED) -> list[Separation]:
    """Return the pairs of policies that may be ranked.

    They are of the same task and ratio, were tried on at least ``least_solved`` trials each that the full
    cache solves, and their intervals do not overlap. Of all other pairs nothing is said.
    """
    enough = [cell for cell in cells if cell.full_solved >= least_solved]
    pairs = []
    for one, other in combinations(enough, 2):
        same = (one.task, one.question_seen, one.ratio) == (other.task, other.question_seen, other.ratio)
        if same and not Interval(one.low, one.high).overlaps(Interval(other.low, other.high)):
            worse, better = sorted((one, other), key=lambda cell: cell.share)
            pairs.append(Separation(one.task, one.question_seen, one.ratio, better.policy, worse.policy))
    return pairs


def _attempt(
    model: Any, tokenizer: Any, cache: Any, trial: Trial, policy: str, mask: KeepMask | None
) -> Attempt:
    answer = _answer(model, tokenizer.eos_token_id, cache, trial, mask)
    spans = [range(*needle) for needle in trial.needles]
    return Attempt(
        task=trial.task,
        question_seen=trial.question_seen,
        number=trial.number,
        policy=policy,
        ratio=0.0 if mask is None else mask.metadata.ratio,
        retained=1.0 if mask is None else float(mask.array.mean()),
        needle_retained=1.0 if mask is None else float(mask.array[..., np.concatenate(spans)].mean()),
        answers=len(trial.answers),
        recalled=trial.recalled(tokenizer.decode(answer)),
    )


def _answer(model: Any, stop: int | None, cache: Any, trial: Trial, mask: KeepMask | None) -> list[int]:
    """Return what the model answers, read no further than the right answer where it begins with that."""
    ids = torch.tensor(trial.next_ids)
    answer = agreed(model, cache, mask, ids, torch.tensor(trial.answer_ids))
    if answer[-1] == stop:
        return answer[:-1]
    if len(answer) > len(trial.answer_ids):
        return answer
    ids = torch.cat([ids, torch.tensor(answer)])
    left = trial.answer_tokens - len(answer)
    return answer + generate(model, cache, mask, ids, left, [] if stop is None else [stop])


def _cell(members: list[Attempt], trials: int) -> RetrievalCell:
    solved = sum(one.solved for one in members)
    low, high = wilson_interval(solved, len(members))
    return RetrievalCell(
        task=members[0].task,
        question_seen=members[0].question_seen,
        policy=members[0].policy,
        ratio=members[0].ratio,
        trials=trials,
        full_solved=len(members),
        solved=solved,
        share=solved / len(members),
        low=low,
        high=high,
        retained=float(np.mean([one.retained for one in members])),
        needle_retained=float(np.mean([one.needle_retained for one in members])),
    )
