"""The attention backend that stands in for CPU_ATTN: vLLM's own, and a look at the queries that pass.

vLLM answers CPU_ATTN on CPU whatever backend is asked for, so that entry itself is overridden. Rows that must
skip pairs (mode ``mask``, and packs of unequal heads) are attended to once more, from a gathered copy, and
their output is replaced; `docs/vllm.md` shows what that costs.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl


class EvictingImpl(CPUAttentionBackendImpl):
    """CPU attention that shows queries to a `kvreclaim.runtimes.vllm.observer.LayerHook` set as ``hook``."""

    hook: Any = None

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Attend as vLLM does, then let the hook see the queries and replace the output of masked rows."""
        attended: Tensor = super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
        )
        if self.hook is not None and attn_metadata is not None:
            self.hook.after(query, output)
        return attended


class EvictingBackend(CPUAttentionBackend):
    """CPU_ATTN with `EvictingImpl`."""

    @staticmethod
    def get_impl_cls() -> type[EvictingImpl]:
        """Return the implementation."""
        return EvictingImpl
