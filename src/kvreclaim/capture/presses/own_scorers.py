"""Scorers of our own as presses of kvpress: R-KV, TriAttention, PagedEviction's, and SnapKV's longer look.

Each scores a layer's KV pairs, alone or within any press that wraps a scorer, in a prefill or while decoding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from kvpress.presses.scorer_press import ScorerPress
from torch import Tensor

from kvreclaim.capture.inside.rotary import bind_rotary, frequencies_of, next_position, rotated_queries
from kvreclaim.capture.presses.calibration import query_centres
from kvreclaim.errors import InputError
from kvreclaim.scores.attention import trailing_attention, value_key_ratio
from kvreclaim.scores.distance import QueryCentres, triattention_scores
from kvreclaim.scores.redundancy import rkv_scores
from kvreclaim.validate import fraction, non_negative_int, positive_int


@dataclass(frozen=True, eq=False)
class LayerState:
    """A layer of one prompt, as a press sees it.

    Parameters
    ----------
    module
        The attention layer.
    hidden_states
        ``[1, n, hidden]``, of the latest n tokens; all of a prompt.
    keys, values
        ``[kv_heads, tokens, head_dim]``.
    kwargs
        What the layer was called with.
    """

    module: Any
    hidden_states: Tensor
    keys: Tensor
    values: Tensor
    kwargs: dict[str, Any]

    def latest_queries(self, count: int) -> Tensor:
        """Return the last ``count`` queries, or as many as there are hidden states of."""
        return rotated_queries(
            self.module, self.hidden_states, min(count, self.hidden_states.shape[1]), self.kwargs
        )


@dataclass
class OwnScorerPress(ScorerPress, ABC):
    """What the scorers of our own share: one prompt at a time, a layer's rows without their batch."""

    def score(
        self,
        module: Any,
        hidden_states: Tensor,
        keys: Tensor,
        values: Tensor,
        attentions: Tensor | None,  # noqa: ARG002  # kvpress's signature
        kwargs: dict[str, Any],
    ) -> Tensor:
        """Return scores ``[1, kv_heads, tokens]``; InputError if there is a batch."""
        if keys.shape[0] != 1:
            raise InputError(f"a batch of {keys.shape[0]} prompts: pass one prompt at a time")
        bind_rotary(module, module.rotary_emb)  # kvpress gives all layers the same
        return self._scores(LayerState(module, hidden_states, keys[0], values[0], kwargs))[None]

    @abstractmethod
    def _scores(self, layer: LayerState) -> Tensor:
        """Return scores ``[kv_heads, tokens]`` of a layer."""


@dataclass
class LastQueriesPress(OwnScorerPress):
    """Scores by the attention of the last ``window_size`` queries, whose own tokens compete as well.

    `kvreclaim.scores.attention.trailing_attention`. For a press that keeps recent tokens by itself, such
    as block-joint.

    Parameters
    ----------
    compression_ratio
        Fraction of KV pairs to evict.
    window_size
        Queries that look.
    kernel_size
        Odd length of the average along the sequence.
    """

    window_size: int = 256
    kernel_size: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int(self.window_size, "window_size")
        _check_odd(self.kernel_size)

    def _scores(self, layer: LayerState) -> Tensor:
        queries = layer.latest_queries(self.window_size)
        scaling = scaling_of(layer.module)
        return trailing_attention(queries, layer.keys, scaling, queries.shape[1], self.kernel_size)


@dataclass
class RKVPress(OwnScorerPress):
    """R-KV: attention from the latest queries, less what later keys repeat. Cai et al., arXiv 2505.24133.

    Parameters
    ----------
    compression_ratio
        Fraction of KV pairs to evict.
    window_size
        Queries that look; their tokens stay.
    kernel_size
        Odd length of the maximum along the sequence.
    attention_share
        The paper's λ: the attention's share of a score; the rest is the redundancy's.
    """

    window_size: int = 8
    kernel_size: int = 7
    attention_share: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int(self.window_size, "window_size")
        _check_odd(self.kernel_size)
        fraction(self.attention_share, "attention_share")

    def _scores(self, layer: LayerState) -> Tensor:
        tokens, queries = layer.keys.shape[1], layer.latest_queries(self.window_size)
        if tokens <= self.window_size:
            raise InputError(
                f"{tokens} tokens and a window_size of {self.window_size}: pass a smaller window_size"
            )
        scaling, window = scaling_of(layer.module), queries.shape[1]
        return rkv_scores(queries, layer.keys, scaling, window, self.kernel_size, self.attention_share)


@dataclass
class TriAttentionPress(OwnScorerPress):
    """TriAttention: what the model's average query pays a key, now and further on.

    Mao et al., arXiv 2604.04921. The model's queries are read off a text once
    (`kvreclaim.capture.presses.calibration`).

    Parameters
    ----------
    compression_ratio
        Fraction of KV pairs to evict.
    recent
        Tokens at the end that stay.
    """

    recent: int = 128
    _centres: tuple[QueryCentres, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        non_negative_int(self.recent, "recent")

    def post_init_from_model(self, model: Any) -> None:
        """Calibrate on the model, unless it was before."""
        self._centres = query_centres(model)

    def _scores(self, layer: LayerState) -> Tensor:
        centres, rates = self._centres[layer.module.layer_idx], frequencies_of(layer.module)
        scores = triattention_scores(centres, layer.keys, rates, next_position(layer.kwargs))
        scores[:, max(layer.keys.shape[1] - self.recent, 0) :] = scores.max() + 1.0
        return scores


@dataclass
class ValueKeyRatioPress(OwnScorerPress):
    """PagedEviction's score of a token, ‖V‖ / ‖K‖. Chitty-Venkata et al., arXiv 2509.04377.

    Parameters
    ----------
    compression_ratio
        Fraction of KV pairs to evict.
    """

    def _scores(self, layer: LayerState) -> Tensor:
        return value_key_ratio(layer.keys, layer.values)


def scaling_of(module: Any) -> float:
    """Return the factor on an attention layer's dot products."""
    return float(getattr(module, "scaling", module.head_dim**-0.5))


def _check_odd(kernel_size: int) -> None:
    if positive_int(kernel_size, "kernel_size") % 2 == 0:
        raise InputError(f"kernel_size is {kernel_size}: pass an odd number")
