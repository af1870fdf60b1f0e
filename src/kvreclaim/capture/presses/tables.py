"""Names of presses, by how they are made."""

from __future__ import annotations

import kvpress
from kvpress import BasePress
from kvpress.presses.scorer_press import ScorerPress

from kvreclaim.capture.presses.joint_press import (
    BlendPress,
    BlockJointPress,
    BlockSwapPress,
    TokenJointPress,
)
from kvreclaim.capture.presses.own_scorers import (
    LastQueriesPress,
    RKVPress,
    TriAttentionPress,
    ValueKeyRatioPress,
)
from kvreclaim.capture.presses.paged_eviction import PagedEvictionPress
from kvreclaim.capture.presses.policy_press import AccumulatedH2OPress

# These score KV pairs; a wrapper takes them.
SCORERS: dict[str, type[ScorerPress]] = {
    "cap": kvpress.CapPress,
    "compactor": kvpress.CompactorPress,
    "cur": kvpress.CURPress,
    "expected-attention": kvpress.ExpectedAttentionPress,
    "expected-attention-stats": kvpress.ExpectedAttentionStatsPress,
    "keydiff": kvpress.KeyDiffPress,
    "knorm": kvpress.KnormPress,
    "kvpress-random": kvpress.RandomPress,
    "kvpress-streaming-llm": kvpress.StreamingLLMPress,
    "lagkv": kvpress.LagKVPress,
    "last-queries": LastQueriesPress,
    "leverage-score": kvpress.LeverageScorePress,
    "non-causal-attention": kvpress.NonCausalAttnPress,
    "observed-attention": kvpress.ObservedAttentionPress,
    "pyramidkv": kvpress.PyramidKVPress,
    "rkv": RKVPress,
    "snapkv": kvpress.SnapKVPress,
    "tova": kvpress.TOVAPress,
    "triattention": TriAttentionPress,
    "value-key-ratio": ValueKeyRatioPress,
}
# These wrap one of those.
WRAPPERS: dict[str, type[BasePress]] = {
    "adakv": kvpress.AdaKVPress,
    "blend": BlendPress,
    "block": kvpress.BlockPress,
    "block-joint": BlockJointPress,
    "block-swap": BlockSwapPress,
    "chunk": kvpress.ChunkPress,
    "chunkkv": kvpress.ChunkKVPress,
    "critical-adakv": kvpress.CriticalAdaKVPress,
    "criticalkv": kvpress.CriticalKVPress,
    "dms": kvpress.DMSPress,
    "entropy-gated-chunkkv": kvpress.EntropyGatedChunkKVPress,
    "per-layer": kvpress.PerLayerCompressionPress,
    "token-joint": TokenJointPress,
}
# These stand alone.
WHOLE: dict[str, type[BasePress]] = {
    "h2o-accumulated": AccumulatedH2OPress,
    "kvcompose": kvpress.KVComposePress,
    "kvgrad": kvpress.KVgradPress,
    "kvzip": kvpress.KVzipPress,
    "paged-eviction": PagedEvictionPress,
}
# The project's own, on attention scores.
POLICIES = (
    *("block-wise", "h2o", "lowest-importance", "minimum-loss", "random"),
    *("reclaimability-aware", "streaming-llm"),
)
# These are refused, each with its reason (kvreclaim.capture.presses.refusals).
REFUSED: dict[str, type[BasePress]] = {
    "cam": kvpress.CAMPress,
    "compression-ratio-decoding": kvpress.CompressionRatioDecodingPress,
    "decoding": kvpress.DecodingPress,
    "duo-attention": kvpress.DuoAttentionPress,
    "fastkvzip": kvpress.FastKVzipPress,
    "finch": kvpress.FinchPress,
    "key-rerotation": kvpress.KeyRerotationPress,
    "kvzap": kvpress.KVzapPress,
    "lukv": kvpress.LUKVPress,
    "merging": kvpress.MergingPress,
    "prefill-decoding": kvpress.PrefillDecodingPress,
    "qfilter": kvpress.QFilterPress,
    "restorekv": kvpress.RestoreKVPress,
    "think": kvpress.ThinKPress,
}
