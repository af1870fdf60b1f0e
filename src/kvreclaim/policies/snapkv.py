"""SnapKV: a recent window and the best-scored tokens before it, on scores that come in clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvreclaim.layout import BlockLayout
from kvreclaim.policies.base import Policy, Scores, Selector
from kvreclaim.policies.recent_window import keep_recent_and_best
from kvreclaim.validate import fraction, non_negative_int


@dataclass(frozen=True)
class SnapKV(Policy):
    """Keeps a recent window and the highest scores before it, each head its own.

    SnapKV pools the attention of its observation window along the sequence, so that neighbours survive
    together; here the scores come in pooled, or as random clusters (`scores.synthetic`), which is the
    study's SnapKV. The selection is H2O's: what differs is the geometry of the scores. Li et al.,
    arXiv 2404.14469.

    Parameters
    ----------
    window
        The recent window: an int is a number of tokens (cut to the budget), a float in [0, 1] a share of the
        budget, rounded down to whole tokens.
    """

    name: ClassVar[str] = "snapkv"
    title: ClassVar[str] = "SnapKV"
    window: int | float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.window, float):
            fraction(self.window, "window")
        else:
            non_negative_int(self.window, "window")

    def _selector(self, scores: Scores, _: BlockLayout | None, /) -> Selector:
        return lambda budget: keep_recent_and_best(scores, budget, self._window(budget))

    def _window(self, budget: int) -> int:
        return int(budget * self.window) if isinstance(self.window, float) else min(self.window, budget)
