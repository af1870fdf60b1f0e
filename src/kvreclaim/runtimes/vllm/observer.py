"""The worker's eyes: which rows a step computes, and what their queries say."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvreclaim.runtimes.vllm.cache import LayerCache
from kvreclaim.runtimes.vllm.kinds import (
    DISTANCE,
    LAST,
    NORM,
    RATIO,
    RECEIVED,
    REDUNDANCY,
    TRAILING,
    WINDOW,
)
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.runtimes.vllm.rowstate import RowState
from kvreclaim.runtimes.vllm.scoring import (
    add_received_attention,
    key_norms,
    masked_attention,
    trailing_attention,
    window_attention,
)
from kvreclaim.runtimes.vllm.selection import kind_of_scores
from kvreclaim.scores.attention import value_key_ratio
from kvreclaim.scores.distance import QueryCentres, triattention_scores
from kvreclaim.scores.redundancy import rkv_scores


@dataclass(frozen=True)
class StepRow:
    """One request in the step that is being computed.

    Attributes
    ----------
    state
        Its row.
    start, end
        Its queries among those of the step.
    computed
        Its tokens in the cache when the step is done.
    blocks
        int64 ``[row]``: its blocks, as far as they are filled.
    scores
        Whether its queries are looked at for scores.
    places
        int64: where its latest queries are remembered, for scores that come from these.
    """

    state: RowState
    start: int
    end: int
    computed: int
    blocks: Tensor
    scores: bool
    places: Tensor | None


class LayerHook:
    """What one layer's attention calls after each forward pass.

    Parameters
    ----------
    layer
        Its place among the layers.
    cache
        Its keys and values.
    scale
        Factor on its dot products.

    Attributes
    ----------
    rows, options
        Requests of the step that is being computed, and what is evicted.
    centres, frequencies
        Of TriAttention's scores: where the layer's queries lie, and how fast they are rotated; None for other
        scores.
    """

    def __init__(self, layer: int, cache: LayerCache, scale: float) -> None:
        self.layer, self.cache, self.scale = layer, cache, scale
        self.rows: list[StepRow] = []
        self.options = Options("none")
        self.centres: QueryCentres | None = None
        self.frequencies: Tensor = torch.empty(0)

    def after(self, query: Tensor, output: Tensor) -> None:
        """Look at the queries of the step, and replace the output of rows that skip pairs.

        Parameters
        ----------
        query, output
            ``[tokens, heads, head_dim]`` of the step's requests, one after the other; the output may be flat.
        """
        for row in self.rows:
            if row.scores:
                started = time.perf_counter()
                self._score(row, query[row.start : row.end])
                row.state.score_seconds += time.perf_counter() - started
            if row.state.masked:
                self._replace(row, query[row.start : row.end], output[row.start : row.end])

    def scores(self, state: RowState, computed: int, blocks: Tensor) -> Tensor:
        """Return a row's scores in this layer, float32 ``[kv_heads, slots]``, for an eviction."""
        kind, slots = kind_of_scores(self.options), state.filled(computed)
        if kind == RECEIVED:
            return state.received(self.layer, computed)
        if kind == NORM:
            return key_norms(self.cache.keys(blocks, slots))
        if kind == RATIO:
            keys, values = self.cache.keys(blocks, slots), self.cache.values(blocks, slots)
            return value_key_ratio(keys.transpose(1, 2), values)
        if kind in (REDUNDANCY, DISTANCE):
            return self._scores_in_order(state, computed, blocks)
        if kind not in (WINDOW, LAST, TRAILING):
            return torch.zeros(self.cache.kv_heads, slots)
        queries, at = state.latest_queries(self.layer)
        positions = state.positions_in(self.layer, computed)
        keys, seen = self.cache.keys(blocks, slots), state.seen_at(self.layer, computed)
        if kind == TRAILING:
            return trailing_attention(queries, at, keys, positions, seen, self.scale)
        weights = window_attention(queries, at, keys, positions, seen, self.scale)
        if kind == LAST:
            return weights.mean(dim=(0, 1)).expand(self.cache.kv_heads, slots)
        return weights.mean(1)

    def _scores_in_order(self, state: RowState, computed: int, blocks: Tensor) -> Tensor:
        """Return scores by slot that come from the live pairs in their tokens' order; 0 for the dead."""
        keys = self.cache.keys(blocks, state.filled(computed))
        slots = state.slots_by_token(self.layer, computed)
        in_order = keys.gather(2, slots[:, None].expand(-1, keys.shape[1], -1)).transpose(1, 2)
        scorer = self._rkv if self.centres is None else self._triattention
        return torch.zeros(keys.shape[0], keys.shape[2]).scatter_(1, slots, scorer(state, in_order, computed))

    def _rkv(self, state: RowState, keys: Tensor, _: int) -> Tensor:
        queries, at = state.latest_queries(self.layer)
        window, kernel, share = self.options.looking, self.options.smoothing, self.options.attention_share
        return rkv_scores(queries[at.argsort()].transpose(0, 1), keys, self.scale, window, kernel, share)

    def _triattention(self, _: RowState, keys: Tensor, computed: int) -> Tensor:
        """Return TriAttention's scores, the latest tokens' above all, raised to 0 and above."""
        assert self.centres is not None  # noqa: S101  # who asked
        scores = triattention_scores(self.centres, keys, self.frequencies, now=computed)
        scores[:, -self.options.looking :] = scores.max() + 1.0
        return scores - scores.min(dim=-1, keepdim=True).values.clamp_max(0.0)

    def _score(self, row: StepRow, queries: Tensor) -> None:
        state = row.state
        if row.places is not None:
            state.remember(self.layer, queries, row.places)
            return
        slots = state.filled(row.computed)
        positions = torch.arange(slots)
        add_received_attention(
            state.received(self.layer, row.computed),
            queries,
            positions[slots - len(queries) :],
            self.cache.keys(row.blocks, slots),
            positions.expand(1, slots),
            state.seen_at(self.layer, row.computed),
            self.scale,
        )

    def _replace(self, row: StepRow, queries: Tensor, output: Tensor) -> None:
        slots = row.state.filled(row.computed)
        seen: Any = row.state.seen_at(self.layer, row.computed)
        keys, values = self.cache.keys(row.blocks, slots), self.cache.values(row.blocks, slots)
        output.copy_(masked_attention(queries, keys, values, seen, self.scale).view_as(output))
