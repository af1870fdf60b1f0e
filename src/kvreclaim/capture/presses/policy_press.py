"""The project's own policies as presses of kvpress, on a real model's attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from kvpress import BasePress
from kvpress.presses.base_press import is_prefilling
from kvpress.utils import compute_n_kept
from torch import Tensor

from kvreclaim.capture.inside.attention_layers import evictable
from kvreclaim.capture.inside.queries import latest_queries, observed_queries
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
class PolicyPress(AttentionPress):
    """Evicts what a policy does not select, once the last layer is scored.

    A policy for shared block tables decides for all layers together, so nothing is evicted before. It keeps
    int(tokens * (1 - compression_ratio)) KV pairs per layer and head, as kvpress's own presses do.

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
    _scores: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    _model: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Policy):
            raise InputError("a PolicyPress needs a policy: pass one of kvreclaim.policies")

    def post_init_from_model(self, model: Any) -> None:
        """Keep the model, whose layers tell which are evicted from."""
        self._model = model

    def forward_hook(self, module: Any, _: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """Score the layer; after the last one, evict from all."""
        tokens = kwargs["hidden_states"].shape[1]
        if not is_prefilling(kwargs["cache_position"], tokens):
            return output
        pressed = [layer for layer, evicts in enumerate(evictable(self._model, tokens)) if evicts]
        if module.layer_idx in pressed:
            if module.layer_idx == pressed[0]:
                self._scores.clear()
            cache = kwargs["past_key_values"]
            self._scores[module.layer_idx] = self._layer_scores(module, cache, kwargs.get(SHARED_SCORES))
            if module.layer_idx == pressed[-1]:
                self._evict(cache, tokens)
        return output

    def _layer_scores(self, module: Any, cache: Any, shared: dict[Any, Tensor] | None) -> Tensor:
        keys = cache.layers[module.layer_idx].keys[0]
        if self.scorer is None:
            return torch.zeros(keys.shape[:2])
        if shared is None or self.scorer not in shared:
            scores = self.scorer(latest_queries(module), keys, scaling_of(module)).cpu()
            if shared is None:
                return scores
            shared[self.scorer] = scores
        return shared[self.scorer]

    def _evict(self, cache: Any, tokens: int) -> None:
        assert self.policy is not None  # noqa: S101  # __post_init__
        scores = np.stack([self._scores[layer].numpy() for layer in sorted(self._scores)])
        budget = compute_n_kept(tokens, self.compression_ratio)
        mask = self.policy.select(scores, budget, self.layout).array
        for layer, keep in zip(sorted(self._scores), mask, strict=True):
            kept = np.nonzero(keep)[1].reshape(len(keep), -1)
            hold = cache.layers[layer]
            hold.keys, hold.values = rows_at(hold.keys, kept), rows_at(hold.values, kept)
        self._scores.clear()


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


def scaling_of(module: Any) -> float:
    """Return the factor on an attention layer's dot products."""
    return float(getattr(module, "scaling", module.head_dim**-0.5))


def rows_at(rows: Tensor, places: Any) -> Tensor:
    """Return the rows ``[1, kv_heads, n, head_dim]`` at ``places`` ``[kv_heads, n]``."""
    at = torch.as_tensor(places, device=rows.device)
    return rows.gather(2, at[None, :, :, None].expand(1, -1, -1, rows.shape[-1])).contiguous()
