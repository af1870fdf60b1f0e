"""What a run in vLLM will do, said by the scheduler in plain Python; and whether it did.

A prediction needs lengths, limits and, of a policy, how many slots an eviction leaves. Where that follows
from the budget (packing with equal heads, whole blocks for all heads, StreamingLLM, masking), nothing of the
run is used. Where it depends on which pairs a policy keeps, the keep masks of the run are audited: whom to
keep is the policy's affair, and what that gives back is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvreclaim.eviction_rules import AtPrefillEnd, BudgetAndBuffer, EvictionRule, Progress
from kvreclaim.keep import as_keep_mask
from kvreclaim.layout import BlockLayout
from kvreclaim.occupancy import live_tokens, occupancy
from kvreclaim.policies.joint import whole_budget
from kvreclaim.runtimes.vllm.kinds import ALIGNED, UNEQUAL, WHOLE
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.runtimes.vllm.records import EvictionRecord, ObservedRun
from kvreclaim.scheduler import Scheduler
from kvreclaim.scheduling import EvictionEvent, Outcome, Request, SchedulerSettings, Step

Mask = NDArray[np.bool_]
Masks = Mapping[tuple[Hashable, int], Mask]
"""The keep mask ``[layers, kv_heads, tokens]`` of each eviction, by request and by tokens computed then."""


@dataclass(frozen=True)
class Prediction:
    """A run as the scheduler says it goes.

    Attributes
    ----------
    steps
        In order.
    outcomes
        By the request's place among the prompts.
    """

    steps: tuple[Step, ...]
    outcomes: Mapping[Hashable, Outcome]

    @property
    def blocks_freed(self) -> dict[int, int]:
        """Blocks that evictions give back, by request."""
        return {place: self.outcomes[place].blocks_freed for place in range(len(self.outcomes))}

    @property
    def evictions(self) -> dict[tuple[int, int], EvictionEvent]:
        """Evictions that drop something, by the step's number from 1 and the request's place."""
        return {
            (step.number + 1, place): event
            for step in self.steps
            for place in self.blocks_freed
            for event in step.evictions
            if event.name == place
        }

    def summary(self) -> dict[str, int]:
        """Return the figures that an observed run has too, by the same names."""
        return {
            "peak_running": max((len(step.scheduled) for step in self.steps), default=0),
            "steps": len(self.steps),
            "blocks_freed": sum(self.blocks_freed.values()),
            "preemptions": sum(len(step.preempted) for step in self.steps),
            "free_blocks_end": self.steps[-1].free_blocks,
        }


def predict(
    settings: SchedulerSettings, prompts: Sequence[int], max_tokens: int, rule: EvictionRule | None
) -> Prediction:
    """Run requests that are all there before the first step.

    Parameters
    ----------
    settings
        The engine's pool and limits.
    prompts
        Tokens of each prompt.
    max_tokens
        Tokens that each request generates.
    rule
        As `rule_for` returns it.

    Raises
    ------
    InputError
        If a request can't run in such a pool.
    """
    scheduler = Scheduler(settings, rule)
    for place, tokens in enumerate(prompts):
        scheduler.add(Request(place, tokens, max_tokens))
    return Prediction(tuple(scheduler.steps()), scheduler.outcomes)


def needs_masks(options: Options) -> bool:
    """Return whether what an eviction leaves depends on which pairs the policy keeps."""
    if options.mode == "free":
        return options.evicts and options.policy not in ("streaming-llm", *WHOLE)
    return options.mode == "pack" and options.policy in (*UNEQUAL, "keep-mask")


def masks_of(run: ObservedRun) -> Masks:
    """Return the keep masks that a run recorded."""
    return {
        (place_of(eviction.request), eviction.computed_tokens): eviction.asked
        for eviction in run.evictions
        if eviction.asked is not None
    }


def place_of(request: str) -> int:
    """Return a request's place among the prompts, from vLLM's id of it: ``run.place-suffix``."""
    return int(request.split(".")[1].split("-")[0])


def rule_for(options: Options, block_size: int, masks: Masks | None = None) -> EvictionRule | None:
    """Return the rule by which the plugin evicts under an option; None where nothing goes back.

    Parameters
    ----------
    options
        As the plugin takes them, but for a copy budget: what that leaves depends on the plan of the moves.
    block_size
        B in tokens.
    masks
        Where `needs_masks` says so.
    """
    if not options.evicts or options.mode == "mask":
        return None
    slots_for: Callable[[Progress], int] | None
    if options.policy in WHOLE or (options.policy in ALIGNED and options.mode == "pack"):
        slots_for = _WholeBlocks(options.budget or 0, block_size).slots_for
    elif options.mode == "free":
        kept = _Recorded(masks or {}) if needs_masks(options) else _sinks_and_recent(options)
        slots_for = _Rows(kept, block_size).slots_for
    else:
        slots_for = _Fullest(masks or {}).slots_for if needs_masks(options) else None
    if options.budget is None:
        return AtPrefillEnd(slots_for or (lambda progress: progress.slots))
    return BudgetAndBuffer(options.budget, options.buffer, slots_for)


@dataclass(frozen=True)
class EvictionPair:
    """What happened to a request at the end of a step, and what was predicted; None: nothing.

    Attributes
    ----------
    step, place
        The step's number, from 1; the request's place among the prompts.
    observed, predicted
        An eviction that finds nothing to drop is observed, and not predicted.
    """

    step: int
    place: int
    observed: EvictionRecord | None
    predicted: EvictionEvent | None

    @property
    def same(self) -> bool:
        """Whether the eviction gave back what was predicted, and left what was."""
        if self.observed is None:
            return False
        if self.predicted is None:
            return self.observed.blocks_freed == 0
        seen, said = self.observed, self.predicted
        return (seen.tokens, seen.held, seen.blocks_freed) == (said.slots, said.slots_left, said.blocks_freed)


def beside(prediction: Prediction, run: ObservedRun) -> list[EvictionPair]:
    """Return the evictions of a run, each with the predicted one; then those that did not come."""
    left = prediction.evictions
    pairs = [
        EvictionPair(one.step, place, one, left.pop((one.step, place), None))
        for one in run.evictions
        for place in [place_of(one.request)]
    ]
    return pairs + [EvictionPair(step, place, None, event) for (step, place), event in left.items()]


def equal(prediction: Prediction, run: ObservedRun) -> dict[str, bool]:
    """Return, figure by figure, whether a run did as predicted.

    The figures of `Prediction.summary`, ``blocks_freed_by_request``, ``evictions`` (each of `beside`), and,
    step by step, ``free_blocks_by_step`` and ``queues_by_step``: requests that ran, were left running, and
    waited.
    """
    said, seen = prediction.summary(), run.summary()
    pairs = beside(prediction, run)
    freed = dict.fromkeys(prediction.blocks_freed, 0)
    for pair in pairs:
        freed[pair.place] += 0 if pair.observed is None else pair.observed.blocks_freed
    return {
        **{name: said[name] == seen[name] for name in said},
        "blocks_freed_by_request": prediction.blocks_freed == freed,
        "evictions": all(pair.same for pair in pairs),
        "free_blocks_by_step": [step.free_blocks for step in prediction.steps]
        == [step.free_blocks for step in run.steps],
        "queues_by_step": [
            (len(step.scheduled), step.running_after, step.waiting_after) for step in prediction.steps
        ]
        == [(step.scheduled, step.running, step.waiting) for step in run.steps],
    }


Kept = Callable[[Progress], Mask | None]
"""From a request's progress to the tokens that any head keeps, bool ``[computed]``; None: unknown."""


def _sinks_and_recent(options: Options) -> Kept:
    """Return StreamingLLM's rule: the first tokens and the last ones, within the budget."""

    def kept(progress: Progress) -> Mask:
        tokens = np.arange(progress.computed)
        recent = (options.budget or 0) - options.sinks
        return (tokens < options.sinks) | (tokens >= progress.computed - recent)

    return kept


@dataclass(frozen=True)
class _Recorded:
    """Masks that a run recorded; where it recorded none, it did not go as predicted."""

    masks: Masks

    def __call__(self, progress: Progress) -> Mask | None:
        mask = self.masks.get((progress.name, progress.computed))
        return None if mask is None else live_tokens(as_keep_mask(mask), BlockLayout(block_size=1))[0]


@dataclass(frozen=True)
class _Fullest:
    """What a pack leaves: the pairs of the head that keeps the most."""

    masks: Masks

    def slots_for(self, progress: Progress) -> int:
        mask = self.masks.get((progress.name, progress.computed))
        return progress.slots if mask is None else int(mask.sum(axis=-1).max())


@dataclass(frozen=True)
class _WholeBlocks:
    """What a policy leaves that fills the blocks it keeps."""

    budget: int
    block_size: int

    def slots_for(self, progress: Progress) -> int:
        """Return the slots of the last block, and of the whole blocks that the budget pays for before it."""
        return whole_budget(self.budget, progress.slots, self.block_size)


@dataclass(frozen=True)
class _Rows:
    """The tokens in each request's row of blocks, in a runtime that frees whole dead blocks and no others."""

    kept: Kept
    block_size: int
    rows: dict[Hashable, NDArray[np.int64]] = field(default_factory=dict)

    def slots_for(self, progress: Progress) -> int:
        """Return the slots of the blocks that hold a live token, and note which tokens are in them."""
        old = self.rows.get(progress.name, np.empty(0, np.int64))
        old = old[:0] if progress.prefill_ended else old
        newer = progress.slots - len(old)
        row = np.concatenate([old, np.arange(progress.computed - newer, progress.computed)])
        kept = self.kept(progress)
        if kept is not None:
            (live,) = occupancy(kept[row], BlockLayout(self.block_size))
            row = row[np.repeat(live > 0, self.block_size)[: len(row)]]
        self.rows[progress.name] = row
        return len(row)
