"""The values that a scheduler takes and gives: settings, requests, steps, outcomes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from kvreclaim.validate import check_block_size, fraction, positive_int

NULL_BLOCKS = 1  # of a pool of N blocks vLLM sets one aside, so N - 1 are usable


@dataclass(frozen=True)
class SchedulerSettings:
    """A runtime's pool and limits.

    Parameters
    ----------
    blocks
        Usable blocks: one less than vLLM's ``num_gpu_blocks``, of which the null block is never used.
    block_size
        B in tokens.
    max_num_seqs
        Most requests that run at once.
    max_num_batched_tokens
        Token budget of a step.
    reserve_full_input
        Admit a request only if its whole input fits now (vLLM's ``scheduler_reserve_full_isl``); else if its
        first chunk does.
    chunked_prefill
        Split a prefill over steps; else admit it only if it fits into what is left of a step's budget.
    watermark
        Fraction of vLLM's pool, null block included, that an admission leaves free while others run.

    Raises
    ------
    InputError
        If a number is out of range.
    """

    blocks: int
    block_size: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    reserve_full_input: bool = True
    chunked_prefill: bool = True
    watermark: float = 0.0

    def __post_init__(self) -> None:
        positive_int(self.blocks, "blocks")
        check_block_size(self.block_size)
        positive_int(self.max_num_seqs, "max_num_seqs")
        positive_int(self.max_num_batched_tokens, "max_num_batched_tokens")
        fraction(self.watermark, "watermark")

    @property
    def watermark_blocks(self) -> int:
        """Blocks that an admission leaves free while others run."""
        return int(self.watermark * (self.blocks + NULL_BLOCKS))

    def blocks_for(self, slots: int) -> int:
        """Return the blocks that hold so many slots."""
        return math.ceil(slots / self.block_size)


@dataclass(frozen=True)
class Request:
    """What a user asks for: a name of its own, tokens of the prompt, tokens to generate (at least 1 each)."""

    name: Hashable
    prompt: int
    output: int

    def __post_init__(self) -> None:
        positive_int(self.prompt, f"prompt of request {self.name!r}")
        positive_int(self.output, f"output of request {self.name!r}")


@dataclass(frozen=True)
class EvictionEvent:
    """One eviction: slots filled before and after it, and the blocks that it gave back at once."""

    name: Hashable
    slots: int
    slots_left: int
    blocks_freed: int


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes
    ----------
    number
        Counted from 0.
    scheduled
        Tokens computed, by request, in the order of the running queue.
    decodes, prefill_tokens, kv_tokens
        Requests that computed the one token generated last; tokens of the others; slots attended to.
    admitted, preempted, finished
        Names, in the order of the events.
    evictions
        In the order of the running queue.
    running, waiting
        Requests in the two queues while the model ran.
    running_after, waiting_after, free_blocks
        At the end of the step, after finishes and evictions: what vLLM's gauges show.
    """

    number: int
    scheduled: Mapping[Hashable, int]
    decodes: int
    prefill_tokens: int
    kv_tokens: int
    admitted: tuple[Hashable, ...]
    preempted: tuple[Hashable, ...]
    finished: tuple[Hashable, ...]
    evictions: tuple[EvictionEvent, ...]
    running: int
    waiting: int
    running_after: int
    waiting_after: int
    free_blocks: int


@dataclass(frozen=True)
class Outcome:
    """What became of a request: step numbers (None: not yet), and counts.

    `queued` is the first step that could have admitted it, `scheduled` the one that did; `first_token` and
    `finish` those that gave it its first and last token. `blocks_freed` by evictions.
    """

    name: Hashable
    queued: int
    scheduled: int | None
    first_token: int | None
    finish: int | None
    preemptions: int
    evictions: int
    blocks_freed: int
