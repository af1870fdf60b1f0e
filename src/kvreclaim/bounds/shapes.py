"""What the deployed eviction shapes free: StreamingLLM, H2O, SnapKV. Last of the tokens is the newest."""

import math
from typing import SupportsIndex

from kvreclaim.bounds.scatter import all_dead, random_reclaim
from kvreclaim.errors import InputError
from kvreclaim.validate import (
    check_at_most,
    check_block_size,
    fraction,
    non_negative_int,
    positive,
    positive_int,
)


def streaming_llm_freed(
    tokens: SupportsIndex, sinks: SupportsIndex, window: SupportsIndex, block_size: SupportsIndex
) -> int:
    """Return the blocks that keeping the first `sinks` and the last `window` tokens frees without a copy.

    The free blocks lie whole in the hole between the two: max(0, floor((N-w)/B) - ceil(s/B)) for w > 0;
    with no window the hole reaches the end and the partial last block is free too: ceil(N/B) - ceil(s/B).
    StreamingLLM: Xiao et al., arXiv 2309.17453.

    Parameters
    ----------
    tokens
        N, at least 1.
    sinks, window
        s and w in tokens, at least 0; where s + w >= N nothing is evicted and nothing freed.
    block_size
        B in tokens, at least 1; N need not be a multiple of it.

    Raises
    ------
    InputError
        If a count is out of range.
    """
    length, sink, recent, size = _sinks_and_window(tokens, sinks, window, block_size)
    hole_end = (length - recent) // size if recent else math.ceil(length / size)
    return max(0, hole_end - math.ceil(sink / size))


def streaming_llm_moved(
    tokens: SupportsIndex, sinks: SupportsIndex, window: SupportsIndex, block_size: SupportsIndex
) -> int:
    """Return the tokens that full compaction of the StreamingLLM shape moves: a few at any length.

    All held blocks but at most three are full: the sinks' last, the window's first, and the sequence's last.
    Keeping the fullest ceil(L/B) blocks moves what lies in the others. With B | N, 0 < s < B and a whole
    block before the window, a = -(N-w) mod B: 0 if a = 0 or s + a > B, else min(s, a).

    Parameters and errors are those of `streaming_llm_freed`.
    """
    length, sink, recent, size = _sinks_and_window(tokens, sinks, window, block_size)
    window_start = max(sink, length - recent)
    boundary_blocks = {sink // size, window_start // size, (length - 1) // size}
    partial = sorted(
        live
        for block in boundary_blocks
        if (live := _overlap(block, size, 0, sink) + _overlap(block, size, window_start, length)) % size
    )
    live_tokens = sink + length - window_start
    full = (live_tokens - sum(partial)) // size
    kept_partial = math.ceil(live_tokens / size) - full
    return sum(partial[: len(partial) - kept_partial])


def h2o_reclaim(
    tokens: SupportsIndex, budget: SupportsIndex, recent: SupportsIndex, block_size: SupportsIndex
) -> float:
    """Return the expected physical reclaim of H2O when its heavy hitters fall at random.

    The last w tokens live, and h = L - w of the first M = N - w drawn without replacement. Of the
    ceil(N/B) blocks the floor(M/B) before the window are free with probability C(M-B, h) / C(M, h) each.
    With w = 0 this is `random_reclaim`. H2O: Zhang et al., arXiv 2306.14048.

    Parameters
    ----------
    tokens, budget, recent
        N >= 1, the kept tokens L <= N, and the recent window w <= L.
    block_size
        B in tokens, at least 1; N need not be a multiple of it.

    Returns
    -------
    float
        E[free blocks] / ceil(N/B), rounded once from an exact rational.

    Raises
    ------
    InputError
        If a count is out of range.
    """
    length = positive_int(tokens, "tokens")
    live = check_at_most(non_negative_int(budget, "budget"), length, "budget", "tokens")
    window = check_at_most(non_negative_int(recent, "recent"), live, "recent", "budget")
    size = check_block_size(block_size)
    if window == 0:
        return random_reclaim(length, length - live, size)
    before_window = length - window
    free = all_dead(before_window, length - live, size)
    return float(before_window // size * free / math.ceil(length / size))


def h2o_asymptote(retained: float, recent_share: float, block_size: SupportsIndex) -> float:
    """Return the physical reclaim of H2O with random heavy hitters in a long sequence.

    The limit of `h2o_reclaim` for N -> infinity: (1-r)^B (1 - f r)^(1-B); at r = .5 it is
    (2-f)^(1-B) / 2.

    Parameters
    ----------
    retained
        r, the kept fraction of the tokens, in [0, 1].
    recent_share
        f, the recent window's fraction of the kept tokens, in [0, 1].
    block_size
        B in tokens, at least 1.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    return snapkv_reclaim_estimate(retained, recent_share, 1.0, block_size)


def snapkv_reclaim_estimate(
    retained: float, recent_share: float, cluster_length: float, block_size: SupportsIndex
) -> float:
    """Return the approximate physical reclaim of SnapKV's shape: a recent window and random clusters.

    (1 - f r) d^(1 + (B-1)/c), d = (1-r) / (1 - f r) being the dead share before the window: clusters that
    start as a Poisson process leave a block free if none starts in its B tokens or the c-1 before them.
    An asymptotic estimate for long sequences, not exact: .301 against a simulated .288 at N = 800,
    r = f = .5, c = 12, B = 16. With c = 1 it is `h2o_asymptote`. SnapKV: Li et al., arXiv 2404.14469.

    Parameters
    ----------
    retained
        r, the kept fraction of the tokens, in [0, 1].
    recent_share
        f, the recent window's fraction of the kept tokens, in [0, 1].
    cluster_length
        c in tokens, at least 1.
    block_size
        B in tokens, at least 1.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    kept = fraction(retained, "retained")
    share = fraction(recent_share, "recent_share")
    length = positive(cluster_length, "cluster_length")
    if length < 1.0:
        raise InputError(f"cluster_length is {cluster_length!r}: pass at least 1 token")
    size = check_block_size(block_size)
    if kept == 1.0:
        return 0.0
    before_window = 1.0 - share * kept
    dead_share = (1.0 - kept) / before_window
    return float(before_window * dead_share ** (1.0 + (size - 1) / length))


def _sinks_and_window(
    tokens: SupportsIndex, sinks: SupportsIndex, window: SupportsIndex, block_size: SupportsIndex
) -> tuple[int, int, int, int]:
    """Check the shape; return its length, sinks and window cut to the length, and block size."""
    length = positive_int(tokens, "tokens")
    sink = min(non_negative_int(sinks, "sinks"), length)
    recent = min(non_negative_int(window, "window"), length)
    return length, sink, recent, check_block_size(block_size)


def _overlap(block: int, block_size: int, start: int, end: int) -> int:
    """Return how many tokens of [start, end) lie in the block."""
    return max(0, min(end, (block + 1) * block_size) - max(start, block * block_size))
