"""Scores of KV pairs from the queries and keys of the engine, never as a tokens x tokens matrix.

Queries are ``[n, heads, head_dim]`` as attention gets them, keys ``[kv_heads, head_dim, slots]`` as they lie
in the cache, in any order: positions say what may see what. Keys are cached rotated, so that nothing needs
rotating here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

QUERY_TILE = 128
KEY_TILE = 1024
"""Sizes of the tiles of attention weights that are held at a time."""


def window_attention(
    queries: Tensor,
    query_positions: Tensor,
    keys: Tensor,
    key_positions: Tensor | None,
    seen: Tensor | None,
    scale: float,
) -> Tensor:
    """Return the mean attention that each pair gets from some queries, float32 ``[kv_heads, group, slots]``.

    Parameters
    ----------
    queries, query_positions
        ``[n, heads, head_dim]`` and ``[n]``: few, such as SnapKV's window (arXiv 2404.14469) or TOVA's last
        one (arXiv 2401.06104).
    keys, key_positions
        ``[kv_heads, head_dim, slots]`` and ``[kv_heads, slots]`` or ``[1, slots]``; None where slot i holds
        token i.
    seen
        bool ``[kv_heads, slots]``: pairs that attention sees; None for all, as where positions are None.
    scale
        Factor on the dot products.
    """
    logits = _logits(queries, query_positions, keys, key_positions, seen, scale)
    weights = logits.softmax(-1)
    if key_positions is not None:  # all that came before a remembered query may have been evicted since
        weights.masked_fill_(logits.amax(-1, keepdim=True) == -torch.inf, 0.0)
    return weights.mean(2)


def add_received_attention(
    received: Tensor,
    queries: Tensor,
    query_positions: Tensor,
    keys: Tensor,
    key_positions: Tensor,
    seen: Tensor | None,
    scale: float,
) -> None:
    """Add to ``received`` ``[kv_heads, slots]`` the attention that queries pay: H2O's column sums.

    A first pass finds each query's log-sum-exp over the keys, a second one adds up the weights, both tile by
    tile; where one tile holds all keys that the queries reach, it is both. Parameters as `window_attention`.
    Zhang et al., arXiv 2306.14048.
    """
    for queried in _tiles(len(queries), QUERY_TILE):
        at = query_positions[queried]
        reached = [
            tile
            for tile in _tiles(keys.shape[2], KEY_TILE)
            if int(key_positions[:, tile].min()) <= int(at.max())
        ]
        logits = _tile_logits(queries[queried], at, keys, key_positions, seen, scale, reached[0])
        total = logits.logsumexp(-1)
        for tile in reached[1:]:
            logits = _tile_logits(queries[queried], at, keys, key_positions, seen, scale, tile)
            total = torch.logaddexp(total, logits.logsumexp(-1))
        for tile in reached:
            if len(reached) > 1:
                logits = _tile_logits(queries[queried], at, keys, key_positions, seen, scale, tile)
            received[:, tile] += logits.sub_(total.unsqueeze(-1)).exp_().sum(2).mean(1)


def trailing_attention(
    queries: Tensor,
    query_positions: Tensor,
    keys: Tensor,
    key_positions: Tensor | None,
    seen: Tensor | None,
    scale: float,
) -> Tensor:
    """Return the attention from latest queries, per query that comes after a pair, ``[kv_heads, slots]``.

    `kvreclaim.scores.attention.trailing_attention`, not yet smoothed, on keys in any order. Parameters as
    `window_attention`; the queries are those of the latest tokens, without a gap.
    """
    received = torch.zeros(keys.shape[0], keys.shape[2])
    for tile in _tiles(len(queries), QUERY_TILE):
        at = query_positions[tile]
        received += window_attention(queries[tile], at, keys, key_positions, seen, scale).mean(1) * len(at)
    places = torch.arange(keys.shape[2])[None] if key_positions is None else key_positions
    return received / (query_positions.max() + 1 - places).clamp(1, len(queries))


def masked_attention(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Return attention ``[n, heads, head_dim]`` of a row's newest queries to the pairs that each head sees.

    Parameters
    ----------
    queries
        ``[n, heads, head_dim]``: of the last n slots, which come one after the other.
    keys, values
        ``[kv_heads, head_dim, slots]`` and ``[kv_heads, slots, head_dim]``.
    seen
        bool ``[kv_heads, slots]``.
    scale
        Factor on the dot products.
    """
    kv_heads, width, slots = keys.shape
    new = len(queries)
    places = torch.arange(slots)
    logits = _logits(queries, places[slots - new :], keys, places.expand(kv_heads, slots), seen, scale)
    mixed = logits.softmax(-1).to(values.dtype) @ values.unsqueeze(1)
    return mixed.permute(2, 0, 1, 3).reshape(new, -1, width)


def key_norms(keys: Tensor) -> Tensor:
    """Return each key's length, float32 ``[kv_heads, slots]``: Knorm drops the longest (arXiv 2406.11430)."""
    lengths: Tensor = torch.linalg.vector_norm(keys.float(), dim=1)
    return lengths


def _logits(
    queries: Tensor,
    query_positions: Tensor,
    keys: Tensor,
    key_positions: Tensor | None,
    seen: Tensor | None,
    scale: float,
) -> Tensor:
    """Return float32 ``[kv_heads, group, n, slots]``, minus infinity where a query does not look."""
    kv_heads, width, slots = keys.shape
    count = len(queries)
    by_head = (queries.float() * scale).view(count, kv_heads, -1, width).permute(1, 2, 0, 3)
    logits = by_head.reshape(kv_heads, -1, width) @ keys.float()
    logits = logits.view(kv_heads, -1, count, slots)
    # Most slots are seen by all queries, and what is not lies together: the rest is left alone.
    if key_positions is None:
        part = slice(int(query_positions.min()) + 1, slots)
        hidden = torch.arange(part.start, slots) > query_positions[:, None]
        logits[..., part].masked_fill_(hidden, -torch.inf)
        return logits
    somewhere = key_positions > query_positions.min()
    if seen is not None:
        somewhere = somewhere | ~seen
    places = somewhere.any(0).nonzero()
    if len(places):
        part = slice(int(places[0]), int(places[-1]) + 1)
        hidden = key_positions[:, None, part] > query_positions[:, None]
        if seen is not None:
            hidden = hidden | ~seen[:, None, part]
        logits[..., part].masked_fill_(hidden[:, None], -torch.inf)
    return logits


def _tile_logits(
    queries: Tensor,
    query_positions: Tensor,
    keys: Tensor,
    key_positions: Tensor,
    seen: Tensor | None,
    scale: float,
    tile: slice,
) -> Tensor:
    looked = None if seen is None else seen[:, tile]
    return _logits(queries, query_positions, keys[..., tile], key_positions[:, tile], looked, scale)


def _tiles(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
