"""What the plugin's policies score by, and which of them decide by whole blocks.

A policy has scores of its own (`OF_POLICY`), or takes those that the option names (`CHOOSING`).
"""

from __future__ import annotations

from dataclasses import dataclass

NONE, WINDOW, LAST, RECEIVED, NORM = "none", "window", "last", "received", "norm"
"""Kinds of scores: none; attention of the latest queries, of the last one, of all; length of the key."""

TRAILING, REDUNDANCY, DISTANCE, RATIO = "trailing", "redundancy", "distance", "ratio"
"""Further kinds: attention per query that comes after a pair; R-KV's; TriAttention's; ‖V‖ / ‖K‖."""

REMEMBERING = (WINDOW, LAST, TRAILING, REDUNDANCY)
"""Kinds that come from the latest queries of each request."""


@dataclass(frozen=True)
class Scorer:
    """Scores by name.

    Parameters
    ----------
    kind
        One of the kinds above.
    window, kernel
        Queries that look (of TriAttention, which looks with none, the latest tokens that stay), and the
        length of what smooths along the sequence, where the option says nothing; None where the option has no
        say: the last query looks, and nothing smooths.
    """

    kind: str
    window: int | None = None
    kernel: int | None = None


SCORERS = {
    "snapkv": Scorer(WINDOW, 64, 5),
    "tova": Scorer(LAST),
    "h2o": Scorer(RECEIVED),
    "knorm": Scorer(NORM),
    "last-queries": Scorer(TRAILING, 256, 5),
    "rkv": Scorer(REDUNDANCY, 8, 7),
    "triattention": Scorer(DISTANCE, 128),
    "value-key-ratio": Scorer(RATIO),
}
"""Whose scores there are; their definitions are in `kvreclaim.scores`."""

OF_POLICY = {
    **{name: name for name in ("snapkv", "tova", "h2o", "knorm", "rkv", "triattention")},
    "adakv": "snapkv",
    "pyramidkv": "snapkv",
    "paged-eviction": "value-key-ratio",
}
"""Policies with scores of their own."""

JOINT = dict.fromkeys(("block-joint", "block-swap", "blend", "token-joint"), "last-queries")
CHOOSING = {"block-wise": "snapkv", **JOINT}
"""Policies that take any scores, and the scores that they take by default."""

WINDOWED = (WINDOW, REDUNDANCY, DISTANCE)
"""Kinds whose queries' own tokens are kept, so that a budget has to exceed them."""

UNEQUAL = ("adakv", "pyramidkv")
"""Policies whose heads or layers keep different numbers of pairs."""

WHOLE = ("block-joint", "paged-eviction")
"""Policies that keep whole blocks, the same for all layers and heads, and so never strand or move a pair."""

ALIGNED = (*WHOLE, "block-swap", "blend")
"""Policies that fill the blocks they keep: of a budget they use whole blocks, and the last one as it is."""

BY_SLOT = (*ALIGNED, "block-wise")
"""Policies whose blocks are those of the row, whatever tokens lie in them."""


def scored_by(policy: str, scores: str | None) -> str | None:
    """Return whose scores a policy takes, where an option names ``scores`` or None.

    None where it goes by position, at random or by a file.
    """
    if policy in CHOOSING:
        return scores or CHOOSING[policy]
    return OF_POLICY.get(policy)
