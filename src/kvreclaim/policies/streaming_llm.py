"""StreamingLLM: attention sinks and a recent window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim.layout import BlockLayout
from kvreclaim.policies.base import RankedPolicy, Scores
from kvreclaim.validate import non_negative_int


@dataclass(frozen=True)
class StreamingLLM(RankedPolicy):
    """Keeps the first ``sinks`` tokens and as many of the last as the budget leaves.

    Positions decide; the scores give the shape and nothing else. The sinks count towards the budget,
    and a budget below them keeps the first of them. Xiao et al., arXiv 2309.17453.

    Parameters
    ----------
    sinks
        Tokens kept at the start.
    """

    name: ClassVar[str] = "streaming-llm"
    title: ClassVar[str] = "StreamingLLM"
    sinks: int = 4

    def __post_init__(self) -> None:
        non_negative_int(self.sinks, "sinks")

    def _eviction_rank(self, scores: Scores, _: BlockLayout | None, /) -> NDArray[np.intp]:
        tokens = scores.shape[-1]
        sinks = min(self.sinks, tokens)
        oldest_first = np.arange(tokens - sinks)
        last_sink_first = np.arange(tokens - 1, tokens - sinks - 1, -1)
        return np.broadcast_to(np.concatenate([last_sink_first, oldest_first]), scores.shape)
