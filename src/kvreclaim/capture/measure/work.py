"""The work itself, on a loaded model: masks from a prefill, quality by replay, cell after cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from kvreclaim.capture.inside.attention_layers import geometry_of, model_name
from kvreclaim.capture.matched.fit import Match, Sweep, match_all
from kvreclaim.capture.measure.cells import Cell, Cells, matched_cell
from kvreclaim.capture.measure.effective import attended
from kvreclaim.capture.measure.plan import Part, Plan
from kvreclaim.capture.prefill import capture
from kvreclaim.capture.presses import make
from kvreclaim.capture.quality import Continuation
from kvreclaim.keep import KeepMask, MaskMetadata
from kvreclaim.prompts import Prompt


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread: sums come out alike everywhere, and busy cores don't stall it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def matches_of(plan: Plan, cells: Cells, prompts: Sequence[Prompt]) -> list[Match]:
    """Return r* of every policy on some prompts whose sweep is done; nothing without a target."""
    if plan.target is None:
        return []
    sweeps = [
        Sweep(
            prompt=prompt.name,
            policy=policy,
            ratios=plan.ratios,
            kls=tuple(cells.quality(cell).kl for cell in plan.sweep_cells((prompt, (policy,)))),
        )
        for prompt in prompts
        for policy in plan.policies
    ]
    return match_all(sweeps, plan.target)


def cells_left(plan: Plan, cells: Cells) -> int:
    """Count the cells of a plan that are not there yet."""
    left = 0
    for prompt in plan.prompts:
        missing = sum(not cells.has(cell) for cell in plan.sweep_cells((prompt, plan.policies)))
        if plan.target is not None:
            missing += len(plan.policies) if missing else len(_missing_matched(plan, cells, prompt))
        left += missing
    return left


def _missing_matched(plan: Plan, cells: Cells, prompt: Prompt) -> list[Cell]:
    matched = [matched_cell(prompt.name, one.policy, one.ratio) for one in matches_of(plan, cells, [prompt])]
    return [cell for cell in matched if not cells.has(cell)]


class Measurer:
    """Measures the cells of a plan that are not there yet.

    Parameters
    ----------
    plan
        What to measure.
    cells
        Where to.
    model
        The loaded model.
    done
        Called after each cell that is measured.
    """

    def __init__(self, plan: Plan, cells: Cells, model: Any, done: Callable[[], None]) -> None:
        self._plan, self._cells, self._model, self._done = plan, cells, model, done

    def sweep(self, part: Part) -> None:
        """Measure some policies on one prompt at all ratios."""
        self._measure(part[0], [cell for cell in self._plan.sweep_cells(part) if not self._cells.has(cell)])

    def match(self, prompt: Prompt) -> None:
        """Make the mask of each policy again where it matches the target, and measure it there."""
        self._measure(prompt, _missing_matched(self._plan, self._cells, prompt))

    def _measure(self, prompt: Prompt, missing: Sequence[Cell]) -> None:
        if not missing:
            return
        ids = torch.tensor([prompt.ids], device=self._model.device)
        evicting = {_label(cell): cell for cell in missing if cell.ratio > 0}
        presses = {
            label: make(attended(cell.policy).press, cell.ratio, len(prompt.ids))
            for label, cell in evicting.items()
        }
        captured = capture(self._model, presses, ids)
        continuation = Continuation(self._model, captured.cache, torch.tensor(prompt.next_ids))
        for cell in missing:
            recorded = captured.masks.get(_label(cell))
            keep = (
                self._everything(prompt) if recorded is None else attended(cell.policy).mask(recorded).array
            )
            mask = KeepMask(keep, cell.policy, self._metadata(cell, prompt))
            self._cells.save(cell, mask, continuation.quality(mask))
            self._done()

    def _everything(self, prompt: Prompt) -> Any:
        geometry = geometry_of(self._model.config)
        return np.ones((geometry.layers, geometry.kv_heads, len(prompt.ids)), np.bool_)

    def _metadata(self, cell: Cell, prompt: Prompt) -> MaskMetadata:
        return MaskMetadata(model_name(self._model), cell.policy, cell.ratio, len(prompt.ids))


def _label(cell: Cell) -> str:
    return f"{cell.policy} at ratio {cell.ratio!r}"
