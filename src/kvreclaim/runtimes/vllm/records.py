"""What is observed of a run in vLLM: one record per engine step, one per eviction, one per finished request.

Nothing here imports vLLM, so that what is recorded can be read and compared where vLLM is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class StepRecord:
    """The engine after one step: finished requests have given their blocks back, and evictions are done.

    Attributes
    ----------
    step
        Number of the engine's step, from 1; a step that scheduled nothing is not counted.
    free_blocks
        Blocks in vLLM's free queue; the null block is not among them.
    scheduled
        Requests that ran in this step. Their maximum over the steps is the peak of running requests: one that
        finished in this step ran, and is in ``running`` no more.
    running, waiting
        Requests left in the scheduler's queues.
    preemptions
        Preemptions since the engine started, those of this step included.
    """

    step: int
    free_blocks: int
    scheduled: int
    running: int
    waiting: int
    preemptions: int


@dataclass(frozen=True)
class EvictionRecord:
    """One eviction from one request; in mode ``compact`` also what a step's compaction moved in its row.

    Attributes
    ----------
    step
        The step at whose end it happened.
    request
        vLLM's own id of the request: the caller's, and a suffix that vLLM adds.
    event
        0 for the first eviction since the request was admitted or resumed, then 1, 2, ...; of a compaction,
        that of the eviction before.
    policy, mode, budget
        As the option named them; budget is null for keep masks from a file.
    computed_tokens
        Tokens of the request that were in the cache or have been: prompt and generated.
    tokens
        KV slots that the request had filled before, dead ones included (the same for all layers and heads).
    kept
        KV pairs that the policy keeps in the fullest head.
    held
        KV slots that the request holds afterwards. ``pack`` holds ``kept``; ``free`` whole blocks of them.
    kept_pairs, attended_pairs
        KV pairs over all layers and heads that the policy keeps, and that attention sees afterwards. In
        ``free``, and where a copy budget ends a pack early, dead pairs in held blocks stay attended.
    dead_pairs
        KV pairs that are dead and in held blocks afterwards: stranded.
    blocks_before, blocks_freed
        Blocks of the request, and those that went back to vLLM's free queue.
    moved_pairs, moved_bytes, runs
        Copies of a pack, or of a compaction, which has some: pairs (K and V of one token, layer and head),
        bytes of both, and stretches of consecutive slots from one block to one block.
    priced_seconds
        What the moves of this step's compaction cost, over all of its rows, by the option's ``copy_cost``;
        None where nothing has a price.
    score_seconds
        Time spent on scores for this eviction, in forward passes since the last one and now.
    seconds
        Time of the eviction itself: selecting, planning, moving; without ``score_seconds``. Of a compaction,
        the step's, in equal parts over its rows.
    asked, effective
        Keep masks bool ``[layers, kv_heads, computed_tokens]``: what the policy keeps, and what attention
        sees. None unless the option asks for them with ``record_masks``.
    """

    step: int
    request: str
    event: int
    policy: str
    mode: str
    budget: int | None
    computed_tokens: int
    tokens: int
    kept: int
    held: int
    kept_pairs: int
    attended_pairs: int
    dead_pairs: int
    blocks_before: int
    blocks_freed: int
    moved_pairs: int
    moved_bytes: int
    runs: int
    score_seconds: float
    seconds: float
    priced_seconds: float | None = None
    asked: Mask | None = field(default=None, repr=False, compare=False)
    effective: Mask | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class RequestOutput:
    """What a finished request said.

    Attributes
    ----------
    request
        The caller's id: its place among the prompts, as text.
    prompt_tokens, output_tokens
        Token ids.
    text
        The generated text.
    finish_reason
        ``length``, ``stop`` or ``abort``.
    """

    request: str
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    text: str
    finish_reason: str


@dataclass(frozen=True)
class ObservedRun:
    """A run of one engine over some prompts.

    Attributes
    ----------
    steps, evictions, outputs
        In the order in which they happened; outputs in the order of the prompts.
    pool_blocks, block_size
        Usable blocks of the pool (the null block is not one), and tokens of a block.
    seconds
        Wall time from the first request to the last output.
    """

    steps: list[StepRecord]
    evictions: list[EvictionRecord]
    outputs: list[RequestOutput]
    pool_blocks: int
    block_size: int
    seconds: float

    @property
    def peak_running(self) -> int:
        """The most requests that ran in one step."""
        return max((step.scheduled for step in self.steps), default=0)

    @property
    def blocks_freed(self) -> int:
        """Blocks that evictions gave back, over all requests."""
        return sum(eviction.blocks_freed for eviction in self.evictions)

    @property
    def moved_bytes(self) -> int:
        """Bytes that packs copied, over all requests."""
        return sum(eviction.moved_bytes for eviction in self.evictions)

    @property
    def preemptions(self) -> int:
        """Preemptions of the run."""
        return self.steps[-1].preemptions if self.steps else 0

    @property
    def free_blocks_end(self) -> int:
        """Free blocks after the last step; all of the pool, if nothing leaked."""
        return self.steps[-1].free_blocks if self.steps else self.pool_blocks

    def summary(self) -> dict[str, int]:
        """Return the figures that a prediction is compared with, by their names in ``observe --json``."""
        return {
            "peak_running": self.peak_running,
            "steps": len(self.steps),
            "blocks_freed": self.blocks_freed,
            "preemptions": self.preemptions,
            "free_blocks_end": self.free_blocks_end,
        }


STEP_COLUMNS = tuple(column.name for column in fields(StepRecord))
EVICTION_COLUMNS = tuple(
    column.name for column in fields(EvictionRecord) if column.name not in ("asked", "effective")
)


def as_row(record: StepRecord | EvictionRecord) -> dict[str, Any]:
    """Return a record as a row of its table, masks left out."""
    columns = STEP_COLUMNS if isinstance(record, StepRecord) else EVICTION_COLUMNS
    return {name: getattr(record, name) for name in columns}
