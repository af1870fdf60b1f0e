"""What each candidate loses by prompt: in what the model says next, in needles, by a user's own measure.

Each prompt's figures are saved once they are there, and read again by the next run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import log
from typing import Any

import torch

from kvreclaim.advise.evaluation import Evaluation, Reader
from kvreclaim.advise.settings import AdviceSettings
from kvreclaim.capture.matched.fit import LEAST_KL
from kvreclaim.capture.measure.cells import Cells, sweep_cell
from kvreclaim.capture.measure.plan import Plan
from kvreclaim.capture.prefill import capture
from kvreclaim.capture.presses import make
from kvreclaim.capture.quality import Continuation
from kvreclaim.capture.quality.haystack import Haystack
from kvreclaim.capture.quality.needle import SINGLE
from kvreclaim.capture.quality.quantised import FORMATS, quantised
from kvreclaim.capture.quality.retrieval import attempt
from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask
from kvreclaim.prompts import Prompt
from kvreclaim.results import ResultsFolder, as_json
from kvreclaim.validate import counted

Figures = dict[str, dict[str, float]]
"""By candidate: figures of one prompt; ``loss`` is what counts."""


class Losses:
    """What the measurements share.

    Parameters
    ----------
    plan
        Candidates, ratio and prompts.
    folder
        Where figures are saved, and the masks are.
    model, tokenizer
        As loaded.
    settings
        What is asked.
    """

    def __init__(
        self, plan: Plan, folder: ResultsFolder, model: Any, tokenizer: Any, settings: AdviceSettings
    ) -> None:
        self.plan, self.model, self.tokenizer, self.settings = plan, model, tokenizer, settings
        self.cells = Cells(folder)
        self._folder = folder

    def saved(self, name: str, made: Callable[[], Figures]) -> Figures:
        """Return figures by their file's name, made and saved where they are not there."""
        file = self._folder.path / "losses" / f"{name}.json"
        with suppress(OSError, ValueError):
            found: Figures = json.loads(file.read_bytes())
            return found
        figures = made()
        self._folder.write(f"losses/{name}.json", as_json(figures))
        return figures

    def mask(self, prompt: Prompt, policy: str) -> KeepMask:
        """Return the mask that a candidate made of a prompt."""
        return self.cells.mask(sweep_cell(prompt.name, policy, self.settings.ratio))

    def cache(self, ids: tuple[int, ...]) -> Any:
        """Return the full cache of some tokens."""
        return capture(self.model, {}, torch.tensor([ids], device=self.model.device)).cache


def continuation_losses(losses: Losses) -> list[Figures]:
    """Return ``kl``, ``top1`` and ``loss`` (the logarithm of the KL) of candidates and formats, by prompt."""
    return [_continuation(losses, prompt) for prompt in losses.plan.prompts]


def _continuation(losses: Losses, prompt: Prompt) -> Figures:
    def formats() -> Figures:
        cache = losses.cache(prompt.ids)
        judge = Continuation(losses.model, cache, torch.tensor(prompt.next_ids))
        return {name: vars(judge.quality_of_cache(quantised(cache, name))) for name in FORMATS}

    found = losses.saved(f"formats-{prompt.name}", formats)
    for policy in losses.plan.policies:
        cell = sweep_cell(prompt.name, policy, losses.settings.ratio)
        found[policy] = vars(losses.cells.quality(cell))
    return {
        name: {"kl": one["kl"], "top1": one["top1"], "loss": log(max(one["kl"], LEAST_KL))}
        for name, one in found.items()
    }


def evaluated_losses(losses: Losses, evaluation: Evaluation) -> list[Figures]:
    """Return the losses by a user's evaluation, by prompt."""

    def evaluated(prompt: Prompt) -> Figures:
        cache = losses.cache(prompt.ids)

        def loss(cache: Any, mask: KeepMask | None) -> dict[str, float]:
            reader = Reader(losses.model, losses.tokenizer, prompt.ids, prompt.next_ids, cache, mask)
            return {"loss": evaluation(reader)}

        found = {name: loss(quantised(cache, name), None) for name in FORMATS}
        return found | {policy: loss(cache, losses.mask(prompt, policy)) for policy in losses.plan.policies}

    return [
        losses.saved(f"evaluated-{prompt.name}", partial(evaluated, prompt)) for prompt in losses.plan.prompts
    ]


def retrieval_losses(losses: Losses, text: str) -> list[Figures]:
    """Return 1 for a needle missed and 0 for one found, by trial that the full cache solves.

    Raises
    ------
    InputError
        If the full cache solves none.
    """
    haystack = Haystack(losses.tokenizer, text)
    settings = losses.settings

    def tried(number: int) -> Figures:
        trial = haystack.trial(SINGLE, settings.context, question_seen=True, number=number)
        presses = {name: make(name, settings.ratio, settings.context) for name in losses.plan.policies}
        ids = torch.tensor([trial.prompt_ids], device=losses.model.device)
        captured = capture(losses.model, presses, ids)
        tries = attempt(losses.model, losses.tokenizer, captured.cache, trial, captured.masks)
        if not tries[0].solved:
            return {}
        found: Mapping[str, bool] = {one.policy: one.solved for one in tries[1:]}
        for name in FORMATS:
            eight_bits = quantised(captured.cache, name)
            (own,) = attempt(losses.model, losses.tokenizer, eight_bits, trial, {})
            found = {**found, name: own.solved}
        return {name: {"loss": float(not solved)} for name, solved in found.items()}

    trials = [losses.saved(f"trial-{number}", partial(tried, number)) for number in range(settings.trials)]
    solved = [one for one in trials if one]
    if not solved:
        raise InputError(
            f"the full cache finds none of {counted(settings.trials, 'needle')} in {settings.context} "
            "tokens: pass a shorter context, or a model that retrieves"
        )
    return solved
