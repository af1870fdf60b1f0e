"""Presses of kvpress that can't be recorded in a prefill, or not offline, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvpress

from kvreclaim.errors import InputError

_WHILE_DECODING = "it evicts while decoding, not in the prefill: see kvreclaim.capture.decoding"

# What these do is not a keep mask.
UNRECORDABLE: dict[type, str] = {
    kvpress.KeyRerotationPress: "it re-rotates the keys of the survivors: a keep mask can't say that",
    kvpress.FinchPress: "it re-rotates keys, and wants a delimiter token between text and question",
    kvpress.MergingPress: "it merges the values of evicted rows into survivors: a keep mask can't say that",
    kvpress.CAMPress: "it merges values, while decoding: a keep mask can't say that",
    kvpress.RestoreKVPress: "it adds rows of its own, and wants an adapter from the Hugging Face Hub "
    "(higokri/RestoreKV-<model>)",
    kvpress.ThinKPress: "it clears channels of the keys and keeps every row: it frees no block",
    kvpress.DecodingPress: _WHILE_DECODING,
    kvpress.PrefillDecodingPress: _WHILE_DECODING,
}

# These run only with files that come from elsewhere; who has them can pass the press itself.
WANTED_FILES: dict[type, str] = {
    kvpress.DuoAttentionPress: "attention patterns from github.com/mit-han-lab/duo-attention "
    "(attn_patterns/<model>/full_attention_heads.tsv)",
    kvpress.QFilterPress: "filters from the Hugging Face Hub (nthngdy/<model>_qfilt)",
    kvpress.KVzapPress: "a surrogate model from the Hugging Face Hub (nvidia/KVzap-mlp-<model>)",
    kvpress.FastKVzipPress: "gates from the Hugging Face Hub (Jang-Hyun/Fast-KVzip, "
    "<model>/q<group>_dim16_sink16.pt)",
    kvpress.LUKVPress: "a budget curve from github.com/baidu-baige/LU-KV (evaluation/curve_data/*.npy)",
    kvpress.ExpectedAttentionStatsPress: "query statistics: a local folder (stats_folder=...), or the "
    "Hugging Face Hub's (alessiodevoto/exp_att_stats_<model>_...)",
}

# These take no attention weights, and say so by failing.
_TAKE_NO_WEIGHTS = (
    kvpress.AdaKVPress,
    kvpress.CriticalAdaKVPress,
    kvpress.BlockPress,
    kvpress.ChunkPress,
    kvpress.ChunkKVPress,
    kvpress.DMSPress,
)


def check_recordable(press: Any, name: str) -> None:
    """Raise InputError if what a press does in a prefill can't be recorded; ``name`` names it."""
    parts = list(nested(press))
    for part in parts:
        if reason := _by_kind(UNRECORDABLE, type(part)):
            raise InputError(f"{name}: {reason}; pass another press")
    if needs_attention_weights(press) and any(isinstance(part, _TAKE_NO_WEIGHTS) for part in parts):
        raise InputError(
            f"{name}: it wraps a press that needs attention weights, and takes none; wrap another"
        )


def check_offline(press: Any, name: str) -> None:
    """Raise InputError if a press wants files from elsewhere; ``name`` names it."""
    for part in nested(press):
        wanted = _by_kind(WANTED_FILES, type(part))
        if not wanted:
            continue
        folder = getattr(part, "stats_folder", None)
        if not folder:
            raise InputError(f"{name}: it wants {wanted}; pass another press")
        if not Path(folder).is_dir():
            raise InputError(f"{name}: {folder} is no folder; pass that of the query statistics")


def reason_against(kind: type) -> str:
    """Return why a kind of press is not offered by name, empty if it is."""
    wanted = _by_kind(WANTED_FILES, kind)
    return _by_kind(UNRECORDABLE, kind) or (f"it wants {wanted}" if wanted else "")


def needs_attention_weights(press: Any) -> bool:
    """Say whether a press, or one that it wraps, scores by weights that only eager attention has.

    A press of your own says so with an attribute ``needs_attention_weights = True``.
    """
    return any(
        isinstance(part, kvpress.ObservedAttentionPress) or getattr(part, "needs_attention_weights", False)
        for part in nested(press)
    )


def nested(press: Any) -> Iterator[Any]:
    """Yield a press and all presses that it wraps."""
    yield press
    for field in ("press", "base_press", "presses", "prefilling_press", "decoding_press"):
        inner = getattr(press, field, None)
        for part in inner if isinstance(inner, list | tuple) else [inner]:
            if isinstance(part, kvpress.BasePress):
                yield from nested(part)


def _by_kind(reasons: dict[type, str], kind: type) -> str | None:
    return next((reasons[base] for base in kind.__mro__ if base in reasons), None)
