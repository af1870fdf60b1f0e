"""vLLM's KV cache on CPU, layer by layer, seen as keys and values.

A layer's cache is ``[blocks, kv_heads, block_size, 2 * head_dim]``, but inside each block and head the CPU
kernels ``vec`` and ``vec16`` keep first the keys, transposed to ``[head_dim, block_size]``, then the values,
``[block_size, head_dim]`` (found in vLLM 0.32). Other layouts are refused: `LayerCache.check` writes known
rows with vLLM's own kernel and looks where they went.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvreclaim.errors import InputError

Indices = NDArray[np.int64]


class LayerCache:
    """Keys and values of one layer.

    Parameters
    ----------
    cache
        The layer's tensor ``[blocks, kv_heads, block_size, 2 * head_dim]``, contiguous.

    Attributes
    ----------
    kv_heads, block_size, head_dim
        Its sizes.
    pair_bytes
        Bytes of one pair, K and V.
    """

    def __init__(self, cache: Tensor) -> None:
        if cache.dim() != 4 or not cache.is_contiguous():
            raise InputError(
                f"a KV cache of shape {tuple(cache.shape)} is not supported: "
                "pass a model whose attention is CPU_ATTN, with the cache's own dtype"
            )
        blocks, self.kv_heads, self.block_size, both = cache.shape
        self.head_dim = both // 2
        half = (blocks, self.kv_heads, 2)
        self._keys = cache.view(*half, self.head_dim, self.block_size)[:, :, 0]
        self._values = cache.view(*half, self.block_size, self.head_dim)[:, :, 1]
        self.pair_bytes = both * cache.element_size()

    def keys(self, blocks: Tensor, slots: int) -> Tensor:
        """Return the keys ``[kv_heads, head_dim, slots]`` in the first slots of some blocks, copied."""
        found = self._keys.permute(1, 2, 0, 3).index_select(2, blocks)  # one copy; an index would make two
        return found.view(self.kv_heads, self.head_dim, -1)[..., :slots]

    def values(self, blocks: Tensor, slots: int) -> Tensor:
        """Return the values ``[kv_heads, slots, head_dim]`` in the first slots of some blocks, copied."""
        found = self._values.transpose(0, 1).index_select(1, blocks)
        return found.view(self.kv_heads, -1, self.head_dim)[:, :slots]

    def move(self, blocks: Tensor, head: Tensor, source: Tensor, destination: Tensor) -> None:
        """Copy pairs from slots of a row to other slots of it.

        Parameters
        ----------
        blocks
            int64 ``[row]``: the row's blocks.
        head, source, destination
            int64 ``[moves]``: KV head, slot read, slot written; no slot is both.
        """
        size = self.block_size
        from_block, from_slot = blocks[source // size], source % size
        to_block, to_slot = blocks[destination // size], destination % size
        self._keys[to_block, head, :, to_slot] = self._keys[from_block, head, :, from_slot]
        self._values[to_block, head, to_slot] = self._values[from_block, head, from_slot]

    def check(self, layer: Any) -> None:
        """Raise InputError unless vLLM writes this layer's rows where they are looked for here."""
        shape = (2, self.kv_heads, self.block_size, 2 * self.head_dim)
        scratch = torch.zeros(shape, dtype=self._keys.dtype)
        rows = torch.arange(self.block_size * self.kv_heads * self.head_dim) % 251 / 256
        key = rows.view(self.block_size, self.kv_heads, self.head_dim).to(scratch.dtype)
        value = -key.flip(0)
        slots = torch.arange(self.block_size, 2 * self.block_size)
        layer.impl.do_kv_cache_update(layer, key, value, scratch, slots)
        seen, second = LayerCache(scratch), torch.tensor([1])
        same = torch.equal(seen.keys(second, self.block_size), key.permute(1, 2, 0))
        if not same or not torch.equal(seen.values(second, self.block_size), value.transpose(0, 1)):
            raise InputError(
                f"the KV cache of {scratch.dtype} on this CPU (kernel {getattr(layer, 'isa', '?')}) has a "
                "layout that is not supported: pass dtype='float32'"
            )
