"""Physical memory under the blocks: VMM pages, and what of them returns to the GPU.

    blocks   [0 1 2 3][4 5 6 7][8 9 ...]     a page holds several blocks; here four
    free      . x x x  x x x x  . .          only the second page goes back

A runtime that maps pages (kvcached, vAttention) returns a page when every block in it is free. One that
stitches chunks (GMLake) joins free ones into a range without a copy, and returns no part of one. One that
allocates its cache at the start (a ring, as llama.cpp's) returns nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.layout.geometry import DTYPE_BYTES, KVGeometry
from kvreclaim.validate import positive_int

KIB, MIB = 1 << 10, 1 << 20
PAGE_SIZES = (64 * KIB, 128 * KIB, 256 * KIB, 2 * MIB)  # vAttention's; kvcached has the last


@dataclass(frozen=True)
class PageLayout:
    """How blocks lie in pages.

    Each layer's keys, and its values, have pages of their own, so one page index stands for 2 × layers pages
    that are mapped and returned together (kvcached).

    Parameters
    ----------
    geometry
        The model's.
    block_size
        Tokens of a block.
    page_bytes
        Bytes of one page.
    tensor_parallel
        GPUs among which the heads are split.

    Raises
    ------
    InputError
        If a number is not positive, the heads can't be split so, or a block is larger than a page or no
        divisor of it.
    """

    geometry: KVGeometry
    block_size: int
    page_bytes: int = 2 * MIB
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        positive_int(self.block_size, "block_size")
        if positive_int(self.page_bytes, "the page's bytes") % self.block_bytes:
            whole = math.lcm(self.page_bytes, self.block_bytes)
            less = self.page_bytes // self.block_bytes * self.block_bytes
            fits = f"{less} or {whole}" if less else str(whole)
            raise InputError(
                f"a block of {self.geometry.name} holds {self.block_bytes} bytes a layer, a page "
                f"{self.page_bytes}: pass a page that holds whole blocks, as {fits} bytes do"
            )

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's keys in one layer, on one GPU."""
        return self.block_size * bytes_per_layer(self.geometry, self.tensor_parallel)

    @property
    def blocks(self) -> int:
        """Blocks of one page."""
        return self.page_bytes // self.block_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of all the pages of one index, on one GPU: keys and values of every layer."""
        return self.page_bytes * 2 * self.geometry.layers


def bytes_per_layer(geometry: KVGeometry, tensor_parallel: int = 1) -> int:
    """Return the bytes of one token's keys in one layer, on one of the GPUs that split the heads.

    Raises
    ------
    InputError
        If the heads can't be split evenly.
    """
    if geometry.kv_heads % positive_int(tensor_parallel, "tensor_parallel"):
        raise InputError(
            f"{geometry.kv_heads} KV heads of {geometry.name} on {tensor_parallel} GPUs: pass a divisor"
        )
    return geometry.kv_heads // tensor_parallel * geometry.head_dim * DTYPE_BYTES[geometry.dtype]


def tokens_per_page(geometry: KVGeometry, page_bytes: int, tensor_parallel: int = 1) -> int:
    """Return the tokens of one page: vAttention's block, for keys and values of each layer apart.

    Prabhu et al., vAttention, arXiv 2405.04437, table of block sizes.
    """
    return positive_int(page_bytes, "the page's bytes") // bytes_per_layer(geometry, tensor_parallel)


def free_pages(free: NDArray[np.bool_], per_page: int) -> int:
    """Return the pages that go back: those with all their blocks free; a partial last one counts.

    Parameters
    ----------
    free
        bool ``[blocks]``, in the order in which they lie in pages.
    per_page
        Blocks of a page.
    """
    if not free.size:
        return 0
    starts = np.arange(0, free.size, positive_int(per_page, "per_page"))
    return int(np.count_nonzero(np.logical_and.reduceat(free, starts)))


def largest_range(free: NDArray[np.bool_], per_chunk: int, *, stitched: bool) -> int:
    """Return the blocks of the largest free range, in whole chunks.

    Stitching maps chunks that are not neighbours to one range of addresses (Guo et al., GMLake, ASPLOS 2024):
    nothing is copied, and a chunk with one live block still gives nothing.
    """
    whole = free.size // positive_int(per_chunk, "per_chunk")
    chunks = free[: whole * per_chunk].reshape(whole, per_chunk).all(axis=1)
    if stitched:
        return int(np.count_nonzero(chunks)) * per_chunk
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chunks, [False]]).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max(initial=0)) * per_chunk
