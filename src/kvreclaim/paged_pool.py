"""Blocks inside pages, and a cache of finished requests' blocks: who pins which page.

A block is used (by a request), retained (its tokens may be found again) or free. A page is mapped from its
first block to its last: only when all its blocks are free does it return to the GPU. A new page is mapped
only when no mapped one has a free block. Rules: kvcached (``kv_cache_manager.py``, and its block pool for
vLLM).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import count

from kvreclaim.errors import InputError
from kvreclaim.pool import PoolIntegrityError
from kvreclaim.validate import non_negative_int, positive_int

ALLOCATIONS = ("last-in-first-out", "page-aware")
EVICTIONS = ("lru", "page-aware")


class PagedPool:
    """Pages without end, each with so many blocks.

    Parameters
    ----------
    per_page
        Blocks of a page.
    most_retained
        Blocks that are retained at most; beyond that some are evicted.
    allocation
        ``last-in-first-out``: from the page that had a block freed last. ``page-aware``: from the fullest
        page that holds all the blocks asked for, else from the emptiest.
    eviction
        ``lru``: the block retained first. ``page-aware``: first whole pages that hold nothing but retained
        blocks, those with the fewest first, then those whose latest block is the oldest; then LRU.
    null_blocks
        Blocks of the first page that are always used: the null block pins page 0.

    Raises
    ------
    InputError
        If a number is out of range or a policy unknown.
    """

    def __init__(
        self,
        per_page: int,
        most_retained: int,
        *,
        allocation: str = "last-in-first-out",
        eviction: str = "lru",
        null_blocks: int = 1,
    ) -> None:
        for value, known in ((allocation, ALLOCATIONS), (eviction, EVICTIONS)):
            if value not in known:
                raise InputError(f"unknown policy {value!r}: pass one of {', '.join(known)}")
        self.per_page = positive_int(per_page, "per_page")
        self.most_retained = non_negative_int(most_retained, "most_retained")
        self._tight, self._by_page = allocation == "page-aware", eviction == "page-aware"
        self._free: dict[int, list[int]] = {}  # of each mapped page with free blocks: last freed last
        self._used: dict[int, int] = {}  # blocks of each mapped page that are used or retained
        self._retained: OrderedDict[int, int] = OrderedDict()  # block to rank, oldest first
        self._unmapped: list[int] = []
        self._ranks, self._numbers = count(), count()
        self._null = self.take(null_blocks) if null_blocks else []

    @property
    def pages(self) -> int:
        """Pages that are mapped."""
        return len(self._used)

    @property
    def retained(self) -> tuple[int, ...]:
        """The retained blocks, oldest first."""
        return tuple(self._retained)

    def page(self, block: int) -> int:
        """Return the page of a block."""
        return block // self.per_page

    def take(self, blocks: int) -> list[int]:
        """Return so many free blocks, now used."""
        taken: list[int] = []
        while len(taken) < blocks:
            page = self._choose(blocks - len(taken))
            free = self._free[page]
            chosen = free[max(0, len(free) - (blocks - len(taken))) :][::-1]
            del free[len(free) - len(chosen) :]
            if not free:
                del self._free[page]
            self._used[page] += len(chosen)
            taken += chosen
        return taken

    def reuse(self, blocks: Iterable[int]) -> None:
        """Make retained blocks used again: their tokens were found."""
        for block in blocks:
            del self._retained[block]

    def release(self, blocks: Iterable[int], retain: Iterable[int] = ()) -> None:
        """Free used blocks, but retain some, the last the newest; evict what exceeds the most retained."""
        self._to_free(blocks)
        for block in retain:
            self._retained[block] = next(self._ranks)
        if len(self._retained) > self.most_retained:
            self.evict(len(self._retained) - self.most_retained)

    def evict(self, blocks: int) -> list[int]:
        """Free so many retained blocks, as the policy chooses them; return them."""
        victims = self._whole_pages(blocks) if self._by_page else []
        for block in victims:
            del self._retained[block]
        while len(victims) < blocks and self._retained:
            victims.append(self._retained.popitem(last=False)[0])
        self._to_free(victims)
        return victims

    def check_integrity(self) -> None:
        """Verify that every block of a mapped page is counted once; raise `PoolIntegrityError` otherwise."""
        for page, used in self._used.items():
            free = self._free.get(page, [])
            if used + len(free) != self.per_page or len(set(free)) != len(free) or not used:
                raise PoolIntegrityError(f"page {page} counts {used} used and {len(free)} free blocks")
        if not self._free.keys() <= self._used.keys():
            raise PoolIntegrityError("a page has free blocks and is not mapped")

    def _choose(self, wanted: int) -> int:
        if not self._free:
            page = self._unmapped.pop() if self._unmapped else next(self._numbers)
            first = page * self.per_page
            self._free[page] = list(range(first + self.per_page - 1, first - 1, -1))
            self._used[page] = 0
            return page
        if not self._tight:
            return next(reversed(self._free))
        fitting = [page for page, free in self._free.items() if len(free) >= wanted]
        if fitting:
            return min(fitting, key=lambda page: (len(self._free[page]), page))
        return max(self._free, key=lambda page: (len(self._free[page]), -page))

    def _whole_pages(self, blocks: int) -> list[int]:
        """Return retained blocks that empty their pages, at most so many."""
        held: dict[int, list[int]] = {}
        for block in self._retained:
            held.setdefault(self.page(block), []).append(block)
        whole = [found for page, found in held.items() if len(found) == self._used[page]]
        whole.sort(key=lambda found: (len(found), self._retained[found[-1]]))
        victims: list[int] = []
        for found in whole:
            if len(victims) + len(found) > blocks:
                break
            victims += found
        return victims

    def _to_free(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            page = self.page(block)
            free = self._free.pop(page, [])
            free.append(block)
            self._free[page] = free  # last in the order: the next to be taken from
            self._used[page] -= 1
            if not self._used[page]:
                del self._used[page], self._free[page]
                self._unmapped.append(page)
