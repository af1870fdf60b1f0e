"""R-KV: attention from the latest queries, less what later keys repeat.

Cai et al., "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models", arXiv 2505.24133; what the
paper leaves open is as in the authors' github.com/Zefan-Cai/R-KV, ``rkv/compression/r1_kv.py`` and
``rkv/utils.py`` (2026). Shapes are those of `kvreclaim.scores.attention`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, normalize, pad

SIMILAR = 0.5
"""Cosine above which a later key counts as a repetition."""

ROWS_AT_ONCE = 512


def rkv_scores(
    queries: Tensor,
    keys: Tensor,
    scaling: float,
    window: int = 8,
    kernel: int = 7,
    attention_share: float = 0.1,
) -> Tensor:
    """Return R-KV's scores, shifted so that the lowest of each head is 0: ``[kv_heads, tokens]``.

    ``attention_share`` (the paper's λ) of a score is the attention from the last queries, softmax over the
    keys before the window, of each KV head the highest logit of its query heads, mean over the queries, then
    the maximum over neighbours; the rest is less the redundancy. The window's own tokens get more than any
    other, so that they are kept.

    Parameters
    ----------
    queries, keys, scaling
        As for `kvreclaim.scores.attention.attention_weights`; all queries, or the last of them.
    window
        Queries that look, fewer than the tokens.
    kernel
        Odd length of the maximum along the sequence.
    attention_share
        In [0, 1].
    """
    attention = _window_attention(queries[:, -window:], keys[:, :-window], scaling)
    attention = max_pool1d(attention, kernel, stride=1, padding=kernel // 2)
    redundancy = redundancy_of(keys)[:, :-window]
    scores = attention_share * attention - (1 - attention_share) * redundancy
    scores = scores - scores.min(dim=-1, keepdim=True).values
    return pad(scores, (0, window), value=float(scores.max()) + 1.0)


def redundancy_of(keys: Tensor) -> Tensor:
    """Return how much each key resembles the others: softmax over tokens of its mean cosine with them.

    Of the keys that are similar to a key, the latest is spared: its cosine with it counts as 0, so that of
    several that repeat each other one stays cheap to keep. ``keys`` is ``[kv_heads, tokens, head_dim]``;
    returns ``[kv_heads, tokens]``. Works by rows, so that no tokens × tokens matrix is held.
    """
    kv_heads, tokens, _ = keys.shape
    unit = normalize(keys.float(), dim=-1)
    places = torch.arange(tokens, device=keys.device)
    total = torch.zeros((kv_heads, tokens), device=keys.device)
    for start in range(0, tokens, ROWS_AT_ONCE):
        own = places[start : start + ROWS_AT_ONCE]
        cosine = unit[:, own] @ unit.transpose(1, 2)
        cosine[:, own - start, own] = 0.0
        latest = torch.where(cosine > SIMILAR, places, 0).max(dim=-1, keepdim=True).values
        total += cosine.scatter_(-1, latest, 0.0).sum(dim=1)
    return (total / tokens).softmax(dim=-1)


def _window_attention(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    kv_heads, _, width = keys.shape
    logits = (queries * scaling).reshape(kv_heads, -1, width) @ keys.transpose(1, 2)
    highest = logits.float().view(kv_heads, -1, queries.shape[1], keys.shape[1]).amax(dim=1)
    return highest.softmax(dim=-1).mean(dim=1)
