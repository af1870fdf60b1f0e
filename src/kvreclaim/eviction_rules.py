"""When a request in a runtime loses KV pairs, and how many slots it then holds.

A rule sees a request at the end of each step that gave it a token, and says how many slots stay filled. Only
their number matters to the pool: packing leaves the survivors in the first slots; a runtime that frees whole
dead blocks leaves a multiple of a block less. A runtime that only masks needs no rule: nothing returns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from kvreclaim.validate import positive_int


@dataclass(frozen=True)
class Progress:
    """A request at the end of a step in which it produced a token.

    Attributes
    ----------
    name
        The request's name.
    prompt, generated
        Tokens of the prompt; tokens generated, this step's included.
    computed
        Tokens whose KV pairs were computed since the request was last admitted, dropped ones included.
    scheduled
        How many of them in this step.
    slots
        Slots filled: `computed` without what was dropped.
    prefill_ended
        Whether this is the first token since the request was admitted, or admitted again after a preemption.
    since_eviction
        Tokens computed since the last eviction, also one that found nothing to drop; None if there was none
        since that admission.
    """

    name: Hashable
    prompt: int
    generated: int
    computed: int
    scheduled: int
    slots: int
    prefill_ended: bool
    since_eviction: int | None


class EvictionRule(Protocol):
    """What a scheduler asks at the end of a step, and when it reserves slots for the next one."""

    def slots_left(self, progress: Progress) -> int | None:
        """Return the slots that stay filled; None if there is no eviction now."""

    def most_slots(self, block_size: int) -> int | None:
        """Return the most slots that a request with dropped pairs holds; None: those filled, and no others.

        With a number, blocks go back when the request is next scheduled, else as soon as pairs are dropped.
        """


@dataclass(frozen=True)
class AtPrefillEnd:
    """Evict once, at the end of prefill; a request that was preempted is evicted again, at its full length.

    Parameters
    ----------
    slots_for
        From a request's progress to the slots that stay filled: by a policy's closed form, or by its mask.
    """

    slots_for: Callable[[Progress], int]

    def slots_left(self, progress: Progress) -> int | None:
        """Return what `slots_for` says, at the end of prefill."""
        return self.slots_for(progress) if progress.prefill_ended else None

    def most_slots(self, block_size: int) -> None:
        """Blocks go back at once."""


@dataclass(frozen=True)
class BudgetAndBuffer:
    """Evict to a budget at the end of prefill, and again whenever a buffer of tokens has come since.

    As kvreclaim's plugin for vLLM does: a request of no more tokens than the budget is left whole until a
    buffer has come beyond the budget.

    Parameters
    ----------
    budget
        KV pairs that each head keeps, at least 1.
    buffer
        Tokens between two evictions, at least 1; None: none after the prefill's.
    slots_for
        As `AtPrefillEnd` takes it; by default the budget, which packing heads of equal budgets leaves.

    Raises
    ------
    InputError
        If budget or buffer is not a whole number of at least 1.
    """

    budget: int
    buffer: int | None = None
    slots_for: Callable[[Progress], int] | None = None

    def __post_init__(self) -> None:
        positive_int(self.budget, "budget")
        if self.buffer is not None:
            positive_int(self.buffer, "buffer")

    def slots_left(self, progress: Progress) -> int | None:
        """Return the budget, or what `slots_for` says, when an eviction is due."""
        if progress.prefill_ended:
            due = progress.computed > self.budget
        else:
            since = progress.since_eviction
            came = progress.computed - self.budget if since is None else since
            due = self.buffer is not None and came >= self.buffer
        if not due:
            return None
        return self.budget if self.slots_for is None else self.slots_for(progress)

    def most_slots(self, block_size: int) -> None:
        """Blocks go back at once."""


@dataclass(frozen=True)
class RKV:
    """The rules of R-KV's port to vLLM: compact while decoding, and reserve for a full buffer ever after.

    A decode step compacts when the tokens decoded pass a multiple of the buffer and at least budget + buffer
    slots are filled. From then on a request reserves at most budget + buffer + one block, whatever it fills:
    with 256, 128 and blocks of 16, 400 slots or 25 blocks for 384.

    Parameters
    ----------
    budget, buffer
        Slots that a compaction leaves; tokens between two.

    Raises
    ------
    InputError
        If either is not a whole number of at least 1.
    """

    budget: int
    buffer: int

    def __post_init__(self) -> None:
        positive_int(self.budget, "budget")
        positive_int(self.buffer, "buffer")

    def slots_left(self, progress: Progress) -> int | None:
        """Return the budget on a decode step that passes a multiple of the buffer, if enough is filled."""
        decoded = progress.computed - progress.prompt
        decoding = progress.scheduled == 1 and decoded > 0
        passes = decoding and decoded // self.buffer > (decoded - 1) // self.buffer
        return self.budget if passes and progress.slots >= self.budget + self.buffer else None

    def most_slots(self, block_size: int) -> int:
        """Return budget + buffer + one block."""
        return self.budget + self.buffer + block_size
