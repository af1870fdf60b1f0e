"""What the worker knows of one request's row of blocks: who is where, who is dead, and scores so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvreclaim.runtimes.vllm.plan import RowPlan

GROWTH = 256
"""Slots by which the buffer of accumulated scores grows."""


@dataclass
class Shape:
    """Layers, KV heads, query heads and head_dim of the model."""

    layers: int
    kv_heads: int
    heads: int
    head_dim: int


@dataclass
class RowState:
    """One request, from its admission or resumption to its end or preemption.

    Attributes
    ----------
    shape
        The model's.
    target
        Tokens that the request came with: where its prefill ends.
    positions
        int32 ``[layers, kv_heads, slots]``: the token in each slot at the last eviction, -1 in a slot that a
        head has not filled. Newer tokens follow in order.
    live
        bool of the same shape; dead pairs that stay in the row are False.
    masked
        Whether attention skips the dead ones.
    removed
        Slots that evictions took from the row so far: filled slots = computed tokens - removed.
    event, since
        Evictions so far, and the computed tokens at the last one.
    score_seconds
        Time spent on scores since the last eviction.
    """

    shape: Shape
    target: int
    positions: NDArray[np.int32] = field(init=False)
    live: NDArray[np.bool_] = field(init=False)
    masked: bool = False
    removed: int = 0
    event: int = 0
    since: int = 0
    score_seconds: float = 0.0
    _seen: Tensor | None = None
    _received: Tensor | None = None
    _queries: Tensor | None = None
    _query_positions: Tensor | None = None

    def __post_init__(self) -> None:
        self.positions = np.zeros((self.shape.layers, self.shape.kv_heads, 0), np.int32)
        self.live = np.zeros(self.positions.shape, np.bool_)

    def filled(self, computed: int) -> int:
        """Return the row's filled slots when so many tokens have been computed."""
        return computed - self.removed

    def positions_at(self, computed: int) -> NDArray[np.int32]:
        """Return the token in each slot, ``[layers, kv_heads, filled]``."""
        latest = np.arange(computed - self._newer(computed), computed, dtype=np.int32)
        return np.concatenate(
            [self.positions, np.broadcast_to(latest, (*self.live.shape[:2], len(latest)))], -1
        )

    def positions_in(self, layer: int, computed: int) -> Tensor | None:
        """Return the token in each slot of a layer, int64 ``[kv_heads, filled]``; None: each its own."""
        if self.event == 0:
            return None
        return torch.from_numpy(self.positions_at(computed)[layer].astype(np.int64))

    def live_at(self, computed: int) -> NDArray[np.bool_]:
        """Return who is live, ``[layers, kv_heads, filled]``."""
        return np.pad(self.live, [(0, 0), (0, 0), (0, self._newer(computed))], constant_values=True)

    def seen_at(self, layer: int, computed: int) -> Tensor | None:
        """Return whom attention sees in a layer, bool ``[kv_heads, filled]``; None where it sees all."""
        if not self.masked:
            return None
        if self._seen is None:
            self._seen = torch.from_numpy(self.live.copy())
        return torch.nn.functional.pad(self._seen[layer], (0, self._newer(computed)), value=True)

    def received(self, layer: int, computed: int) -> Tensor:
        """Return the attention received in a layer so far, float32 ``[kv_heads, filled]``, to be added to."""
        slots = self.filled(computed)
        held = 0 if self._received is None else self._received.shape[-1]
        if held < slots:
            grown = torch.zeros(self.shape.layers, self.shape.kv_heads, slots + GROWTH)
            if self._received is not None:
                grown[..., :held] = self._received
            self._received = grown
        assert self._received is not None  # noqa: S101  # a row has at least one slot
        return self._received[layer, :, :slots]

    def places_of_queries(self, count: int, window: int, computed: int) -> Tensor:
        """Return where `remember` is to put the latest of a step's queries, int64, a window at most."""
        if self._query_positions is None:
            self._query_positions = torch.full((window,), -1)
        positions = torch.arange(computed - min(count, window), computed)
        places = positions % window
        self._query_positions[places] = positions
        return places

    def remember(self, layer: int, queries: Tensor, places: Tensor) -> None:
        """Keep the latest queries of a layer, of ``[n, heads, head_dim]`` as many as there are places."""
        assert self._query_positions is not None  # noqa: S101  # whoever has places asked for them
        if self._queries is None:
            shape = (self.shape.layers, len(self._query_positions), self.shape.heads, self.shape.head_dim)
            self._queries = torch.zeros(shape, dtype=queries.dtype)
        latest, start = queries[len(queries) - len(places) :], int(places[0])
        before_end = min(len(places), len(self._query_positions) - start)  # then on from its beginning
        self._queries[layer, start : start + before_end] = latest[:before_end]
        self._queries[layer, : len(places) - before_end] = latest[before_end:]

    def latest_queries(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the remembered queries of a layer, ``[n, heads, head_dim]``, and their positions ``[n]``."""
        assert self._queries is not None and self._query_positions is not None  # noqa: S101
        there = self._query_positions >= 0
        if there.all():  # without a copy
            return self._queries[layer], self._query_positions
        return self._queries[layer, there], self._query_positions[there]

    def forget_queries(self) -> None:
        """Let go of the remembered queries: nothing is to be scored by them any more."""
        self._queries = self._query_positions = None

    def slots_by_token(self, layer: int, computed: int) -> Tensor:
        """Return the slots of a layer's live pairs by their tokens, int64 ``[kv_heads, living]``.

        All heads of the layer have as many.
        """
        if self.event == 0:
            return torch.arange(computed).expand(self.shape.kv_heads, computed)
        live = self.live_at(computed)[layer]
        positions = np.where(live, self.positions_at(computed)[layer], np.iinfo(np.int32).max)
        order = np.argsort(positions, axis=-1, kind="stable")[:, : int(live[0].sum())]
        return torch.from_numpy(order)

    def evicted(self, plan: RowPlan, computed: int, masked: bool) -> None:
        """Take over an eviction's plan that has been carried out when so many tokens were computed."""
        self.rearranged(plan, computed)
        self.masked = masked
        self.event, self.since = self.event + 1, computed
        self.score_seconds = 0.0

    def rearranged(self, plan: RowPlan, computed: int) -> None:
        """Take over a plan that evicts nothing new."""
        positions = plan.carry(self.positions_at(computed), -1)
        if self._received is not None:
            received = self._received[..., : self.filled(computed)].numpy()
            self._received = torch.from_numpy(plan.carry(received, 0.0))
        self.positions, self.live, self._seen = positions, plan.live, None
        self.removed = computed - plan.held

    def _newer(self, computed: int) -> int:
        """Return the tokens that came since the last eviction."""
        return self.filled(computed) - int(self.positions.shape[-1])
