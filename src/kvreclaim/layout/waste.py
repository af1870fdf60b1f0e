"""KV memory that a hybrid model wastes when every layer holds every token: from its geometry alone.

Cases of vllm-project/vllm#11382: Llama-3.2-11B-Vision, Gemma-2, Ministral.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvreclaim.errors import InputError
from kvreclaim.layout.geometry import KVGeometry
from kvreclaim.validate import check_ratio, non_negative_int, positive_int


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


def repeated_heads_share(ratio: float, groups: int) -> float:
    """Return the bytes of a cache that repeats its KV heads, as a share of the plain full cache's.

    A method that keeps a KV head once for each query head of its group holds `groups` copies of what
    survives: (1 − ratio) × groups. Below a ratio of 1 − 1/groups it holds more than the full cache
    (FasterDecoding/SnapKV, issue 16).
    """
    return (1 - check_ratio(ratio)) * positive_int(groups, "groups")


@dataclass(frozen=True)
class Ring:
    """A cache that is allocated whole at the start, as llama.cpp's (issue 27583): nothing in it ever returns.

    Parameters
    ----------
    geometry
        The model's.
    tokens
        Tokens that it has room for.
    """

    geometry: KVGeometry
    tokens: int

    def __post_init__(self) -> None:
        positive_int(self.tokens, "tokens")

    @property
    def allocated(self) -> int:
        """Bytes, whatever of it is filled."""
        return self.tokens * self.geometry.bytes_per_token

    def returned(self, evicted: int) -> int:
        """Return the bytes that evicting so many of its tokens gives back: none."""
        if non_negative_int(evicted, "evicted") > self.tokens:
            raise InputError(
                f"{evicted} of {self.tokens} tokens can't be evicted: pass no more than there are"
            )
        return 0

    def saved_by(self, tokens: int) -> int:
        """Return the bytes that a ring of fewer tokens saves: the only saving there is."""
        return self.allocated - Ring(self.geometry, tokens).allocated
