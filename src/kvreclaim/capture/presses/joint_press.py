"""Presses that decide for all layers together: any scorer of kvpress, under a block-coherent policy.

    with BlockJointPress(SnapKVPress(0.5), block_size=16)(model): ...

A layer is scored when it has run; after the last one the policy decides, and all layers are cut at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import torch
from kvpress import BasePress
from kvpress.presses.base_press import is_prefilling
from kvpress.presses.scorer_press import ScorerPress
from kvpress.utils import compute_n_kept
from torch import Tensor

from kvreclaim.capture.inside.attention_layers import evictable
from kvreclaim.capture.inside.rotary import bind_rotary
from kvreclaim.errors import InputError
from kvreclaim.layout import BlockLayout
from kvreclaim.policies import Blend, BlockJoint, BlockSwap, Policy, TokenJoint


@dataclass
class TwoPassPress(BasePress, ABC):
    """Scores every layer first, and evicts from all once the last one is scored.

    Where every head keeps as many pairs, which all policies do, the cache gets really shorter. It keeps
    int(tokens * (1 - compression_ratio)) KV pairs per layer and head, as kvpress's own presses do. In a model
    that mixes full with sliding-window attention only the full layers are evicted from.

    In a `kvpress.ComposedPress` it is refused where another press evicts from or changes the same cache: that
    one runs layer by layer, and this one only once all layers have run.

    Raises
    ------
    InputError
        In the prefill, if another press cut or changed a layer before all were scored.
    """

    _found: dict[int, tuple[Tensor, int]] = field(default_factory=dict, init=False, repr=False)
    _scores: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    _model: Any = field(default=None, init=False, repr=False)

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
            cache = kwargs["past_key_values"]
            if module.layer_idx == pressed[0]:
                self._scores.clear()
                self._found.clear()
            self._find(cache, module.layer_idx, tokens)
            self._scores[module.layer_idx] = self._layer_scores(module, cache, kwargs, output)
            if module.layer_idx == pressed[-1]:
                self._check_alone(cache)
                self.cut(cache, self._scores, compute_n_kept(tokens, self.compression_ratio))
                self._scores.clear()
                self._found.clear()
        return output

    def _find(self, cache: Any, layer: int, tokens: int) -> None:
        """Note a layer's keys as they are scored; refuse those that another press cut."""
        keys = cache.layers[layer].keys
        if keys.shape[2] != tokens:
            raise self._beside_another()
        self._found[layer] = keys, _version(keys)

    def _check_alone(self, cache: Any) -> None:
        """Refuse layers that are no longer what was scored."""
        for layer, (keys, version) in self._found.items():
            if cache.layers[layer].keys is not keys or _version(keys) != version:
                raise self._beside_another()

    def _beside_another(self) -> InputError:
        return InputError(
            f"{type(self).__name__} evicts from all layers at once, after another press has changed them one "
            "by one: pass it alone, without that press in a ComposedPress"
        )

    @abstractmethod
    def _layer_scores(self, module: Any, cache: Any, kwargs: dict[str, Any], output: Any) -> Tensor:
        """Return the scores ``[kv_heads, tokens]`` of a layer, not negative."""

    @abstractmethod
    def _select(self, scores: Any, budget: int) -> Any:
        """Return bool ``[layers, kv_heads, tokens]`` from scores of that shape."""

    def cut(self, cache: Any, scores: dict[int, Tensor], budget: int) -> None:
        """Leave of each scored layer what is selected within a budget."""
        mask = self._select(stacked(scores), budget)
        leave(cache, sorted(scores), mask)


@dataclass
class JointPress(TwoPassPress):
    """What the presses on a block-coherent policy share; their fields are the policy's.

    Parameters
    ----------
    press
        Any scorer press of kvpress, with the compression ratio. Scores below 0 are raised, each head's by as
        much as makes its lowest 0.
    block_size, block_tables
        The runtime's layout: tokens of a block; ``shared``, ``per_layer`` or ``per_head``.
    heads, tokens, top, sinks, recent
        As for `kvreclaim.policies.joint.JointPolicy`. A press that marks tokens to stay by a score above all
        others wants ``sinks`` and ``recent`` that cover them.
    """

    press: ScorerPress
    block_size: int = 16
    block_tables: str = "shared"
    heads: str = "mean"
    tokens: str = "mean"
    top: int = 2
    sinks: int = 4
    recent: int = 64
    kind: ClassVar[type[Policy]]

    def __post_init__(self) -> None:
        if not isinstance(self.press, ScorerPress):
            raise InputError(
                f"{self.kind.name} wraps a press that scores KV pairs, got {type(self.press).__name__}: pass "
                "one such as kvpress.SnapKVPress(0.5)"
            )
        self._layout = BlockLayout(self.block_size, self.block_tables)
        names = [one.name for one in fields(self.kind)]  # type: ignore[arg-type]  # each is a dataclass
        self._policy = self.kind(**{name: getattr(self, name) for name in names})

    @property
    def compression_ratio(self) -> float:
        """Fraction of KV pairs to evict: that of the press."""
        return float(self.press.compression_ratio)

    @compression_ratio.setter
    def compression_ratio(self, ratio: float) -> None:
        self.press.compression_ratio = ratio

    def post_init_from_model(self, model: Any) -> None:
        """Hand the model to the press, too."""
        super().post_init_from_model(model)
        self.press.post_init_from_model(model)

    def _layer_scores(self, module: Any, cache: Any, kwargs: dict[str, Any], output: Any) -> Tensor:
        return self.scores_of(module, cache, kwargs, output)

    def scores_of(self, module: Any, cache: Any, kwargs: dict[str, Any], output: Any) -> Tensor:
        """Return the press's scores ``[kv_heads, tokens]`` of a layer, raised to 0 and above."""
        layer = cache.layers[module.layer_idx]
        if layer.keys.shape[0] != 1:
            raise InputError(f"a batch of {layer.keys.shape[0]} prompts: pass one prompt at a time")
        attentions = output[1] if len(output) > 1 else None
        bind_rotary(module, module.rotary_emb)  # kvpress gives all layers the same
        scores: Tensor = self.press.score(
            module, kwargs["hidden_states"], layer.keys, layer.values, attentions, kwargs
        )[0].float()
        if not scores.isfinite().all():
            head, token = (~scores.isfinite()).nonzero()[0].tolist()
            raise InputError(
                f"{type(self.press).__name__} scores {scores[head, token].item()} at layer "
                f"{module.layer_idx}, head {head}, token {token}: pass a press of finite scores"
            )
        return (scores - scores.min(dim=-1, keepdim=True).values.clamp_max(0.0)).cpu()

    def _select(self, scores: Any, budget: int) -> Any:
        return self.select(scores, budget)

    def select(self, scores: Any, budget: int) -> Any:
        """Return whom the policy keeps, bool ``[layers, kv_heads, tokens]``, by scores of that shape."""
        return self._policy.select(scores, budget, self._layout).array

    def tables(self, layers: int, kv_heads: int) -> list[Any]:
        """Return for each block table the rows, ``layer * kv_heads + head``, that it maps."""
        return list(self._layout.rows_of_tables(layers, kv_heads))


@dataclass
class BlockJointPress(JointPress):
    """Evicts whole blocks, the same in all layers and heads of a block table: `policies.BlockJoint`."""

    kind: ClassVar[type[Policy]] = BlockJoint


@dataclass
class TokenJointPress(JointPress):
    """Evicts the same tokens in all layers and heads of a block table: `policies.TokenJoint`."""

    kind: ClassVar[type[Policy]] = TokenJoint


@dataclass
class BlendPress(JointPress):
    """Keeps some blocks in place, and packs each head's own choice into the others: `policies.Blend`.

    Parameters
    ----------
    beta
        Share of the kept blocks that are packed.
    """

    beta: float = 0.25
    kind: ClassVar[type[Policy]] = Blend


@dataclass
class BlockSwapPress(JointPress):
    """Keeps whole blocks, and swaps single pairs into them: `policies.BlockSwap`.

    Parameters
    ----------
    copies
        KV pairs that may be copied, as a share of all.
    """

    copies: float = 0.025
    kind: ClassVar[type[Policy]] = BlockSwap


def _version(keys: Tensor) -> int:
    """Return how often a tensor was written to in place; 0 in inference mode, which doesn't count."""
    return 0 if keys.is_inference() else keys._version


def stacked(scores: dict[int, Tensor]) -> Any:
    """Return the scores of layers in their order, ``[layers, kv_heads, tokens]``."""
    return np.stack([scores[layer].numpy() for layer in sorted(scores)])


def leave(cache: Any, layers: Sequence[int], mask: Any) -> None:
    """Leave of each of some layers what a mask ``[layers, kv_heads, tokens]`` keeps, in its order."""
    for layer, keep in zip(layers, mask, strict=True):
        kept = np.nonzero(keep)[1].reshape(len(keep), -1)
        hold = cache.layers[layer]
        hold.keys, hold.values = rows_at(hold.keys, kept), rows_at(hold.values, kept)


def rows_at(rows: Tensor, places: Any) -> Tensor:
    """Return the rows ``[1, kv_heads, n, head_dim]`` at ``places`` ``[kv_heads, n]``."""
    at = torch.as_tensor(places, device=rows.device)
    return rows.gather(2, at[None, :, :, None].expand(1, -1, -1, rows.shape[-1])).contiguous()
