"""TriAttention: keys scored by the attention that a model's average query pays them, now and further on.

Mao et al., "TriAttention: Efficient Long Reasoning with Trigonometric KV Compression", arXiv 2604.04921; what
the abstract leaves open is as in the authors' github.com/WeianMao/triattention,
``triattention/pruning_utils.py`` (2026). Before rotation the queries of a head lie around a centre c. With a
key k before rotation, and the pairs f of dimensions that rotary embeddings turn at rates ω_f as
complex numbers, a query Δ tokens after the key pays it about

    Σ_f |c_f| |k_f| cos(ω_f Δ + arg c_f - arg k_f)   +   Σ_f (E|q_f| - |c_f|) |k_f|

where the second sum is what the spread of the queries adds. The score is the mean over distances
Δ = 1, 2, 4, ... tokens from now. In the first sum the key and its place enter only as the rotated key, which
is what a cache holds, and the mean over distances only through the query: it is a dot product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FURTHEST = 1 << 16
"""Tokens from now up to which distances count, powers of two."""


@dataclass(frozen=True)
class QueryCentres:
    """Where the queries of a layer lie before rotation; made by `centres_of`.

    Parameters
    ----------
    centre
        float32 ``[heads, head_dim]``: the mean query.
    spread
        float32 ``[heads, head_dim / 2]``: E|q_f| - |E q_f| of each pair of dimensions, not negative.
    """

    centre: Tensor
    spread: Tensor


def centres_of(queries: Tensor) -> QueryCentres:
    """Return the centre and spread of queries before rotation, ``[heads, tokens, head_dim]``.

    Pairs are dimension d and d + head_dim / 2, as transformers' models rotate them.
    """
    taken = queries.float()
    centre = taken.mean(dim=1)
    return QueryCentres(centre, pair_norms(taken).mean(dim=1) - pair_norms(centre))


def pair_norms(vectors: Tensor) -> Tensor:
    """Return the length of each pair of dimensions: ``[..., head_dim]`` to ``[..., head_dim / 2]``."""
    first, second = vectors.chunk(2, dim=-1)
    return torch.hypot(first, second)


def triattention_scores(centres: QueryCentres, keys: Tensor, frequencies: Tensor, now: int) -> Tensor:
    """Return TriAttention's scores of a layer's KV pairs, ``[kv_heads, tokens]``; they may be negative.

    Each query head's scores are made mean 0 and standard deviation 1 over the tokens; of the query heads that
    share a KV head the highest counts.

    Parameters
    ----------
    centres
        Of the layer.
    keys
        ``[kv_heads, tokens, head_dim]``, rotated, as the cache holds them.
    frequencies
        ω ``[head_dim / 2]``, radians a token.
    now
        Position of the next token; distances count from there.
    """
    kv_heads, tokens, _ = keys.shape
    grouped = keys.float().repeat_interleave(len(centres.centre) // kv_heads, dim=0)
    expected = _expected_query(centres.centre, frequencies, now)
    scores = (grouped @ expected[:, :, None])[..., 0]
    scores = scores + (pair_norms(grouped) @ centres.spread[:, :, None])[..., 0]
    scores = scores - scores.mean(dim=-1, keepdim=True)
    scores = scores / scores.std(dim=-1, correction=0, keepdim=True).clamp_min(1e-6)
    return scores.view(kv_heads, -1, tokens).amax(dim=1)


def _expected_query(centre: Tensor, frequencies: Tensor, now: int) -> Tensor:
    """Return the centre rotated to each of the distances from now, on average: ``[heads, head_dim]``."""
    steps = FURTHEST.bit_length()
    positions = now + 2.0 ** torch.arange(steps, dtype=torch.float64)
    angles = positions[:, None] * frequencies.to(torch.float64).cpu()
    cosine = angles.cos().mean(dim=0).to(centre)
    sine = angles.sin().mean(dim=0).to(centre)
    first, second = centre.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
