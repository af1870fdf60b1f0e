"""What the worker tells the scheduler's half that it did to a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvreclaim.runtimes.vllm.plan import RowPlan


@dataclass(frozen=True)
class Evicted:
    """What was done to one row; fields as in `kvreclaim.runtimes.vllm.records.EvictionRecord`.

    ``blocks`` are the places in the row of the blocks that stay.
    """

    request: str
    blocks: list[int]
    event: int
    tokens: int
    kept: int
    held: int
    kept_pairs: int
    attended_pairs: int
    dead_pairs: int
    moved_pairs: int
    moved_bytes: int
    runs: int
    score_seconds: float
    seconds: float
    priced_seconds: float | None = None
    asked: NDArray[np.bool_] | None = None
    effective: NDArray[np.bool_] | None = None


def tell(
    request: str,
    event: int,
    tokens: int,
    plan: RowPlan,
    masked: bool,
    pair_bytes: int,
    seconds: tuple[float, float],
) -> Evicted:
    """Return what a plan did to a row.

    Parameters
    ----------
    request, event, tokens
        Whose row, which of its evictions, and the slots that it had filled before.
    plan
        Carried out.
    masked
        Whether attention skips the dead pairs that are left.
    pair_bytes
        Bytes of a pair, K and V.
    seconds
        Spent on scores, and on the rest.
    """
    live = int(np.count_nonzero(plan.live))
    return Evicted(
        request=request,
        blocks=plan.blocks.tolist(),
        event=event,
        tokens=tokens,
        kept=int(plan.live.sum(axis=-1).max()),
        held=plan.held,
        kept_pairs=live,
        attended_pairs=live if masked else plan.live.size,
        dead_pairs=plan.live.size - live,
        moved_pairs=plan.moves,
        moved_bytes=plan.moves * pair_bytes,
        runs=plan.runs,
        score_seconds=seconds[0],
        seconds=seconds[1],
    )
