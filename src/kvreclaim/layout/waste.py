"""KV memory that a hybrid model wastes when every layer holds every token: from its geometry alone.

Cases of vllm-project/vllm#11382: Llama-3.2-11B-Vision, Gemma-2, Ministral.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvreclaim.errors import InputError
from kvreclaim.layout.geometry import KVGeometry
from kvreclaim.validate import non_negative_int, positive_int


@dataclass(frozen=True)
class Layers:
    """Equal layers of a model: how many, and the tokens that each needs to hold for a request."""

    count: int
    tokens: int

    def __post_init__(self) -> None:
        positive_int(self.count, "layers")
        non_negative_int(self.tokens, "tokens")


def wasted_share(groups: Iterable[Layers], held: int) -> float:
    """Return the share of the KV pairs that are held and never read, where every layer holds so many tokens.

    Raises
    ------
    InputError
        If a layer needs more tokens than are held.
    """
    listed = list(groups)
    if not listed or max(group.tokens for group in listed) > positive_int(held, "held"):
        raise InputError(f"layers hold {held} tokens: pass groups, each needing no more than that")
    needed = sum(group.count * group.tokens for group in listed)
    return 1 - needed / (held * sum(group.count for group in listed))


def windows_waste(geometry: KVGeometry, tokens: int) -> float:
    """Return that share for a model whose layers see a window each, and a request of so many tokens."""
    length = positive_int(tokens, "tokens")
    groups = [
        Layers(len(group.layers), length if group.window is None else min(group.window, length))
        for group in geometry.layer_groups()
    ]
    return wasted_share(groups, length)
