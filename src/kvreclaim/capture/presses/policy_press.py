"""The project's own policies as presses of kvpress, on a real model's attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from kvpress import BasePress
from kvpress.utils import compute_n_kept
from torch import Tensor

from kvreclaim.capture.inside.queries import latest_queries, observed_queries
from kvreclaim.capture.presses.joint_press import TwoPassPress, rows_at
from kvreclaim.capture.presses.own_scorers import scaling_of
from kvreclaim.errors import InputError
from kvreclaim.layout import BlockLayout
from kvreclaim.policies import Policy
from kvreclaim.scores.attention import accumulated_heavy_hitters, received_attention, window_attention

SHARED_SCORES = "shared_scores"
"""Key, in what a press's hook gets, of a layer's scores that the presses of one prefill share."""

Scorer = Callable[[Tensor, Tensor, float], Tensor]
"""Takes a layer's queries, keys and scaling; returns scores [kv_heads, tokens]."""


@dataclass(frozen=True)
class ReceivedAttention:
    """Scores a KV pair by the attention that it receives from the whole prompt: H2O's, in one shot."""

    def __call__(self, queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
        """Return a layer's scores ``[kv_heads, tokens]``."""
        return received_attention(queries, keys, scaling)


@dataclass(frozen=True)
class WindowAttention:
    """Scores a KV pair by the attention of the last ``window_size`` queries, smoothed: SnapKV's."""

    window_size: int = 64
    kernel_size: int = 5

    def __call__(self, queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
        """Return a layer's scores ``[kv_heads, tokens]``; InputError if the window is the whole prompt."""
        if keys.shape[1] <= self.window_size:
            raise InputError(
                f"{keys.shape[1]} tokens and a window_size of {self.window_size}: pass a smaller window_size"
            )
        return window_attention(queries, keys, scaling, self.window_size, self.kernel_size)


@dataclass
class AttentionPress(BasePress):  # a press that sees the queries
    """What presses share that score by a layer's own queries.

    Soft caps and learned sinks, which some families put into the softmax, are left out of the scores.
    """

    compression_ratio: float = 0.0
    shares_prefill: ClassVar[bool] = True

    @contextmanager
    def __call__(self, model: Any) -> Iterator[None]:
        """Press the model within the block."""
        with observed_queries(model), super().__call__(model):
            yield


@dataclass
class PolicyPress(AttentionPress, TwoPassPress):
    """Evicts what a policy does not select, once the last layer is scored.

    Parameters
    ----------
    compression_ratio
        Fraction of KV pairs to evict.
    policy
        A policy of `kvreclaim.policies`.
    scorer
        Makes the policy's scores; None for policies that select by position or at random.
    layout
        Blocks and block tables, for policies that evict whole blocks. All layers count as one group: those of
        a hybrid model that slide are not evicted from.
    """

    policy: Policy | None = None
    scorer: Scorer | None = None
    layout: BlockLayout | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Policy):
            raise InputError("a PolicyPress needs a policy: pass one of kvreclaim.policies")

    def _layer_scores(self, module: Any, cache: Any, kwargs: dict[str, Any], _: Any) -> Tensor:
        shared: dict[Any, Tensor] | None = kwargs.get(SHARED_SCORES)
        keys = cache.layers[module.layer_idx].keys[0]
        if self.scorer is None:
            return torch.zeros(keys.shape[:2])
        if shared is None or self.scorer not in shared:
            scores = self.scorer(latest_queries(module), keys, scaling_of(module)).cpu()
            if shared is None:
                return scores
            shared[self.scorer] = scores
        return shared[self.scorer]

    def _select(self, scores: Any, budget: int) -> Any:
        assert self.policy is not None  # noqa: S101  # __post_init__
        return self.policy.select(scores, budget, self.layout).array


@dataclass
class AccumulatedH2OPress(AttentionPress):
    """H2O that evicts while it reads the prompt, under the same budget from the first token to the last.

    A pair's score is the attention that it received while it lived; what was evicted takes part no more. The
    model's own outputs are those of the full prompt, as with every press of a prefill. Zhang et al.,
    arXiv 2306.14048.

    Parameters
    ----------
    compression_ratio
        Fraction of KV pairs to evict.
    recent_share
        The recent window's share of the budget, rounded down to whole tokens.
    stride
        Tokens read between evictions; 1 evicts after each, as the paper does, and takes longest.
    """

    recent_share: float = 0.5
    stride: int = 32

    def compress(
        self,
        module: Any,
        hidden_states: Tensor,  # noqa: ARG002  # kvpress's signature
        keys: Tensor,
        values: Tensor,
        attentions: Tensor | None,  # noqa: ARG002
        kwargs: dict[str, Any],  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values that are left."""
        budget = compute_n_kept(keys.shape[2], self.compression_ratio)
        recent = int(budget * self.recent_share)
        kept = accumulated_heavy_hitters(
            latest_queries(module), keys[0], scaling_of(module), budget, recent, self.stride
        )
        return rows_at(keys, kept), rows_at(values, kept)
