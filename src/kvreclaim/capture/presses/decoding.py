"""Presses that evict while the model generates: H2O, StreamingLLM, and kvpress's DecodingPress, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import kvpress
import torch
from kvpress import BasePress
from kvpress.presses.base_press import is_prefilling
from torch import Tensor

from kvreclaim.capture.inside.queries import latest_queries
from kvreclaim.capture.inside.quiet import quiet_kvpress
from kvreclaim.capture.presses.joint_decoding import JointDecodingPress
from kvreclaim.capture.presses.joint_press import rows_at
from kvreclaim.capture.presses.maker import Maker
from kvreclaim.capture.presses.own_scorers import scaling_of
from kvreclaim.capture.presses.paged_eviction import PagedEvictionDecodingPress
from kvreclaim.errors import InputError
from kvreclaim.grammar import NamedPress, parse
from kvreclaim.scores.attention import HeavyHitters
from kvreclaim.validate import fraction, non_negative_int, positive_int

NAMES = ("decoding:PRESS", "h2o", "paged-eviction", "streaming-llm")
INTERVAL = 64
"""Steps between evictions of ``decoding``: kvpress's own default, 512, exceeds most generations here."""


@dataclass
class H2ODecodingPress(BasePress):
    """H2O over a generation: attention adds up step by step, and each step evicts down to the target.

    The prompt is read whole, then cut to the target; from there on a pair's score is what it received from
    the prompt and from every later query while it lived. Zhang et al., arXiv 2306.14048.

    Parameters
    ----------
    target_size
        KV pairs kept per layer and head.
    recent_share
        The recent window's share of the target, rounded down to whole tokens.
    """

    target_size: int = 1024
    recent_share: float = 0.5
    _hitters: dict[int, HeavyHitters] = field(default_factory=dict, init=False, repr=False)
    _read: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        positive_int(self.target_size, "target_size")
        fraction(self.recent_share, "recent_share")

    def forward_hook(self, module: Any, _: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """Add up the attention of the step's queries, then evict."""
        queries, layer = latest_queries(module), kwargs["past_key_values"].layers[module.layer_idx]
        if is_prefilling(kwargs["cache_position"], queries.shape[1]):
            recent = int(self.target_size * self.recent_share)
            heads, device = layer.keys.shape[1], layer.keys.device
            self._hitters[module.layer_idx] = HeavyHitters(heads, self.target_size, recent, device)
            self._read[module.layer_idx] = 0
        hitters = self._hitters[module.layer_idx]
        hitters.observe(queries, layer.keys[0], scaling_of(module), self._read[module.layer_idx])
        self._read[module.layer_idx] += queries.shape[1]
        if layer.keys.shape[2] > self.target_size:
            kept = hitters.evict()
            layer.keys, layer.values = rows_at(layer.keys, kept), rows_at(layer.values, kept)
        return output


@dataclass
class RollingWindowPress(BasePress):
    """StreamingLLM over a generation: the first tokens stay, and a window rolls over the latest.

    Rows keep the positions that they were written with. Xiao et al., arXiv 2309.17453, number them anew by
    their place in the cache, which changes what the model says and not which pairs live.

    Parameters
    ----------
    target_size
        KV pairs kept per layer and head, more than the sinks.
    sinks
        Tokens kept at the start.
    """

    target_size: int = 1024
    sinks: int = 4

    def __post_init__(self) -> None:
        if positive_int(self.target_size, "target_size") <= non_negative_int(self.sinks, "sinks"):
            raise InputError(f"a target_size of {self.target_size} and {self.sinks} sinks: pass fewer sinks")

    def forward_hook(self, module: Any, _: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """Cut the layer's rows to the sinks and the window."""
        layer = kwargs["past_key_values"].layers[module.layer_idx]
        if layer.keys.shape[2] > self.target_size:
            layer.keys, layer.values = self._cut(layer.keys), self._cut(layer.values)
        return output

    def _cut(self, rows: Tensor) -> Tensor:
        return torch.cat([rows[:, :, : self.sinks], rows[:, :, self.sinks - self.target_size :]], dim=2)


def make_decoding(text: str, target_size: int) -> BasePress:
    """Return a press that evicts while decoding, by its name.

    Parameters
    ----------
    text
        ``h2o``, ``paged-eviction``, ``streaming-llm``, or ``decoding:PRESS`` for kvpress's DecodingPress on a
        scorer, and for `JointDecodingPress` on a block-coherent one, such as ``block-joint:PRESS`` or
        ``block-swap:PRESS``; with parameters, as `kvreclaim.grammar` says.
    target_size
        KV pairs kept per layer and head.

    Raises
    ------
    InputError
        If there is no such press or parameter, or a value is out of range.
    """
    parts: Sequence[NamedPress] = parse(text)
    head, rest = parts[0], parts[1:]
    maker = Maker(text, target_size, NAMES)
    with quiet_kvpress():
        if head.name == "decoding" and rest and rest[0].name in JOINT:
            joint, rest = maker.outer(rest, ratio=0.0)
            press = maker.construct(JointDecodingPress, head, press=joint, target_size=target_size)
        elif head.name == "decoding":
            inner, rest = maker.scorer(head, rest, ratio=0.0)
            interval = {"compression_interval": INTERVAL, **head.parameters}
            head = NamedPress(head.name, interval)
            press = maker.construct(kvpress.DecodingPress, head, base_press=inner, target_size=target_size)
        elif head.name in _OWN:
            press = maker.construct(_OWN[head.name], head, target_size=target_size)
        else:
            raise InputError(
                f"no press {head.name!r} that evicts while decoding: pass one of {', '.join(NAMES)}"
            )
    if rest:
        raise InputError(f"{text}: {rest[0].name} follows a press that wraps none; leave it out")
    return press


JOINT = ("blend", "block-joint", "block-swap", "token-joint")
_OWN: dict[str, Any] = {
    "h2o": H2ODecodingPress,
    "paged-eviction": PagedEvictionDecodingPress,
    "streaming-llm": RollingWindowPress,
}
