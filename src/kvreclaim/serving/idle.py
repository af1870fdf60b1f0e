"""What an idle engine still holds: kvcached's measurement of retained blocks in pages, made again.

The published part (ovg-project/kvcached#390): Qwen3-4B, 64 blocks of 16 tokens a page, 1,000 blocks retained,
2,500 requests, 96 at once, 64 groups of prefixes, outputs of 16 to 256 tokens. Its prompt lengths are
"varied" and not given: here a prefix of 256 tokens and a part of its own of 16 to 703, chosen so that the
plain policy holds about what they saw; what the other policies hold then follows.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from kvreclaim.paged_pool import PagedPool

REQUESTS, AT_ONCE, GROUPS, BLOCK = 2500, 96, 64, 16
PER_PAGE, RETAINED = 64, 1000
_PREFIX, _OWN, _OUTPUT = 256, (16, 704), (16, 257)
_Key = tuple[int, int, int]  # group or request, place, whose


@dataclass
class _Cache:
    """Blocks by what they hold, and how many requests read each."""

    pool: PagedPool
    block_of: dict[_Key, int] = field(default_factory=dict)
    key_of: dict[int, _Key] = field(default_factory=dict)
    readers: dict[int, int] = field(default_factory=dict)

    def begin(self, keys: list[_Key], tokens: int) -> list[int]:
        """Return the table of a prompt: blocks that are there already, then new ones."""
        table: list[int] = []
        for key in keys[: (tokens - 1) // BLOCK]:
            if key not in self.block_of:
                break
            block = self.block_of[key]
            if not self.readers.get(block):
                self.pool.reuse([block])
            self.readers[block] = self.readers.get(block, 0) + 1
            table.append(block)
        self.grow(table, -(-tokens // BLOCK) - len(table))
        for key, block in zip(keys, table, strict=False):
            if key not in self.block_of:
                self.block_of[key], self.key_of[block] = block, key
        return table

    def grow(self, table: list[int], blocks: int) -> None:
        new = self.pool.take(blocks)
        self.readers.update(dict.fromkeys(new, 1))
        table += new

    def end(self, request: int, table: list[int], full: int) -> None:
        """Let go of a table, its last block first; whole blocks are retained."""
        free, retained = [], []
        for place in range(len(table) - 1, -1, -1):
            block = table[place]
            self.readers[block] -= 1
            if self.readers[block]:
                continue
            if place >= full:
                free.append(block)
                continue
            if block not in self.key_of:
                self.key_of[block] = (-1, place, request)
                self.block_of[self.key_of[block]] = block
            retained.append(block)
        held = {*self.pool.retained, *retained}
        self.pool.release(free, retained)
        for block in held.difference(self.pool.retained):
            del self.block_of[self.key_of.pop(block)]


def idle_pages(allocation: str, eviction: str, seed: int) -> int:
    """Return the pages that are mapped when the last request has ended.

    Parameters
    ----------
    allocation, eviction
        Policies of `PagedPool`.
    seed
        Of the requests' lengths and groups.
    """
    random = np.random.default_rng(seed)
    cache = _Cache(PagedPool(PER_PAGE, RETAINED, allocation=allocation, eviction=eviction))
    prompts = _PREFIX + random.integers(*_OWN, REQUESTS)
    outputs, groups = random.integers(*_OUTPUT, REQUESTS), random.integers(0, GROUPS, REQUESTS)
    tables: dict[int, list[int]] = {}
    events: list[tuple[int, int]] = []  # step and request: it begins, needs a block, or ends
    length: dict[int, int] = {}
    for request in range(AT_ONCE):
        heapq.heappush(events, (0, request))
    waiting = AT_ONCE
    while events:
        step, request = heapq.heappop(events)
        goal = int(prompts[request] + outputs[request]) - 1
        if request not in tables:
            tokens = int(prompts[request])
            common = _PREFIX // BLOCK
            keys = [
                (int(groups[request]), place, -1 if place < common else request)
                for place in range(tokens // BLOCK)
            ]
            tables[request], length[request] = cache.begin(keys, tokens), tokens
        elif length[request] > goal:
            cache.end(request, tables.pop(request), goal // BLOCK)
            if waiting < REQUESTS:
                heapq.heappush(events, (step + 1, waiting))
                waiting += 1
            continue
        table = tables[request]
        cache.grow(table, -(-length[request] // BLOCK) - len(table))
        opens = len(table) * BLOCK + 1  # the length that opens the next block
        ahead = min(opens, goal) - length[request] if length[request] < goal else 1
        length[request] += ahead
        heapq.heappush(events, (step + ahead, request))
    return cache.pool.pages
