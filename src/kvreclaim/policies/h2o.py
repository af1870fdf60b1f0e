"""H2O: heavy hitters and a recent window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvreclaim.layout import BlockLayout
from kvreclaim.policies.base import Policy, Scores, Selector
from kvreclaim.policies.recent_window import keep_recent_and_best
from kvreclaim.validate import fraction


@dataclass(frozen=True)
class H2O(Policy):
    """Keeps a recent window and the heavy hitters, the highest scores before it, each head its own.

    H2O adds up a token's attention over the steps of decoding; here the scores come in finished. On i.i.d.
    scores the heavy hitters fall at random, which is the study's H2O. Zhang et al., arXiv 2306.14048.

    Parameters
    ----------
    recent_share
        The recent window's share of the budget, in [0, 1], rounded down to whole tokens.
    """

    name: ClassVar[str] = "h2o"
    title: ClassVar[str] = "H2O"
    recent_share: float = 0.5

    def __post_init__(self) -> None:
        fraction(self.recent_share, "recent_share")

    def _selector(self, scores: Scores, _: BlockLayout | None, /) -> Selector:
        return lambda budget: keep_recent_and_best(scores, budget, int(budget * self.recent_share))
