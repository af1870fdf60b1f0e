"""Scores from a model's own attention: queries and keys of a layer in, importance of its KV pairs out.

Queries are ``[heads, tokens, head_dim]`` and keys ``[kv_heads, tokens, head_dim]``, both as attention uses
them (rotated), of one layer; scores are ``[kv_heads, tokens]``, the mean over the query heads that share a KV
head. Stacked over layers they are what a policy selects by. The attention weights are made for a block of
queries at a time, so that no tokens x tokens matrix is held.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

QUERY_BLOCK = 128


def attention_weights(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Return causal attention weights of the last queries, float32 ``[kv_heads, group, queries, tokens]``.

    Parameters
    ----------
    queries
        ``[heads, n, head_dim]``: those of the last n of the keys' tokens.
    keys
        ``[kv_heads, tokens, head_dim]``, in the order of their tokens.
    scaling
        Factor on the dot products, usually ``head_dim ** -0.5``.
    """
    kv_heads, tokens, _ = keys.shape
    heads, last, width = queries.shape
    logits = (queries * scaling).reshape(kv_heads, -1, width) @ keys.transpose(1, 2)
    logits = logits.float().view(kv_heads, heads // kv_heads, last, tokens)
    future = torch.ones(last, last, dtype=torch.bool, device=keys.device).triu(1)
    logits[..., tokens - last :].masked_fill_(future, -torch.inf)
    return logits.softmax(-1)


def received_attention(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Return the attention that each KV pair receives from all queries, summed: H2O's score in one shot.

    Zhang et al., arXiv 2306.14048. Queries are those of all the keys' tokens.
    """
    tokens = keys.shape[1]
    scores = torch.zeros(keys.shape[:2], device=keys.device)
    for start in range(0, tokens, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, tokens)
        scores[:, :end] += _per_pair(attention_weights(queries[:, start:end], keys[:, :end], scaling))
    return scores


def window_attention(queries: Tensor, keys: Tensor, scaling: float, window: int, kernel: int) -> Tensor:
    """Return the mean attention from the last ``window`` queries, smoothed: SnapKV's score.

    Li et al., arXiv 2404.14469. The window's own tokens get more than any other, so that they are kept.

    Parameters
    ----------
    queries, keys, scaling
        As for `attention_weights`; all queries, or the last of them.
    window
        Queries that look, fewer than the tokens.
    kernel
        Odd length of the average along the sequence.
    """
    weights = attention_weights(queries[:, -window:], keys, scaling)
    scores = _per_pair(weights)[:, :-window] / window
    scores = avg_pool1d(scores, kernel, stride=1, padding=kernel // 2)
    return pad(scores, (0, window), value=float(scores.max()) + 1.0)


def trailing_attention(queries: Tensor, keys: Tensor, scaling: float, window: int, kernel: int) -> Tensor:
    """Return the attention from the last ``window`` queries, per query that can see a pair, smoothed.

    SnapKV's score with a longer window whose own tokens compete as well: a token that few of the queries come
    after is judged by those few. Parameters are those of `window_attention`, but that the window may be the
    whole prompt.
    """
    tokens, last = keys.shape[1], min(window, keys.shape[1])
    before, own = tokens - last, queries[:, -last:]
    received = torch.zeros(keys.shape[:2], device=keys.device)
    for start in range(0, last, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, last)
        weights = attention_weights(own[:, start:end], keys[:, : before + end], scaling)
        received[:, : before + end] += _per_pair(weights)
    seen_by = torch.arange(tokens, 0, -1, device=keys.device).clamp_max(last)
    smoothed: Tensor = avg_pool1d(received / seen_by, kernel, stride=1, padding=kernel // 2)
    return smoothed


def value_key_ratio(keys: Tensor, values: Tensor) -> Tensor:
    """Return ‖V‖ / ‖K‖ of each KV pair, ``[kv_heads, tokens]``: PagedEviction's score.

    Chitty-Venkata et al., arXiv 2509.04377. Rotation doesn't change a key's length.
    """
    ratio: Tensor = values.float().norm(dim=-1) / keys.float().norm(dim=-1).clamp_min(1e-12)
    return ratio


def _per_pair(weights: Tensor) -> Tensor:
    """Sum ``[kv_heads, group, queries, tokens]`` over the queries, and average over the group."""
    return weights.sum(2).mean(1)


class HeavyHitters:
    """H2O as it goes: the attention each living KV pair has received so far, with evictions.

    Zhang et al., arXiv 2306.14048: a pair that was evicted neither receives nor comes back. Each head keeps
    as many pairs as the others.

    Parameters
    ----------
    kv_heads
        Heads.
    budget
        KV pairs kept per head.
    recent
        Of these, the latest ones, kept whatever they received; at most the budget.
    device
        Where the tensors are.

    Attributes
    ----------
    positions
        int64 ``[kv_heads, living]``: tokens of the living pairs, ascending.
    received
        float32 ``[kv_heads, living]``.
    """

    def __init__(self, kv_heads: int, budget: int, recent: int, device: torch.device) -> None:
        self.budget, self.recent = budget, recent
        self.positions = torch.empty((kv_heads, 0), dtype=torch.int64, device=device)
        self.received = torch.empty((kv_heads, 0), device=device)

    def observe(self, queries: Tensor, keys: Tensor, scaling: float, first: int) -> None:
        """Add new tokens and the attention that their queries pay.

        Parameters
        ----------
        queries
            ``[heads, n, head_dim]`` of the n new tokens.
        keys
            ``[kv_heads, living + n, head_dim]``: of the living pairs, then of the new ones.
        scaling
            As for `attention_weights`.
        first
            Position of the first new token.
        """
        kv_heads, living = self.positions.shape
        new = queries.shape[1]
        fresh = torch.arange(first, first + new, device=keys.device).expand(kv_heads, new)
        self.positions = torch.cat([self.positions, fresh], dim=1)
        self.received = pad(self.received, (0, new))
        for start in range(0, new, QUERY_BLOCK):
            end = min(start + QUERY_BLOCK, new)
            weights = attention_weights(queries[:, start:end], keys[:, : living + end], scaling)
            self.received[:, : living + end] += _per_pair(weights)

    def evict(self) -> Tensor:
        """Evict down to the budget; return the survivors' places among the pairs, ascending."""
        kv_heads, living = self.positions.shape
        if living <= self.budget:
            return torch.arange(living, device=self.positions.device).expand(kv_heads, living)
        old = living - self.recent
        heavy = self.received[:, :old].topk(self.budget - self.recent, dim=-1).indices.sort(-1).values
        latest = torch.arange(old, living, device=heavy.device).expand(kv_heads, self.recent)
        places = torch.cat([heavy, latest], dim=1)
        self.positions, self.received = self.positions.gather(1, places), self.received.gather(1, places)
        return places


def accumulated_heavy_hitters(
    queries: Tensor, keys: Tensor, scaling: float, budget: int, recent: int, stride: int
) -> Tensor:
    """Return the tokens ``[kv_heads, budget]`` that H2O keeps if it evicts while it reads the prompt.

    Parameters
    ----------
    queries, keys, scaling
        Of all the prompt's tokens, as for `attention_weights`.
    budget, recent
        As for `HeavyHitters`.
    stride
        Tokens read between evictions; 1 evicts after each, as the paper does.
    """
    hitters = HeavyHitters(keys.shape[0], budget, recent, keys.device)
    for start in range(0, keys.shape[1], stride):
        at = hitters.positions.unsqueeze(-1).expand(-1, -1, keys.shape[-1])
        living = torch.cat([keys.gather(1, at), keys[:, start : start + stride]], dim=1)
        hitters.observe(queries[:, start : start + stride], living, scaling, start)
        hitters.evict()
    return hitters.positions
