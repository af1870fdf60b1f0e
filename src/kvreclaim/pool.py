"""A paged allocator in plain Python: free list, reference counts, block tables.

    allocate "a", 10   [0, 1, 2]   |xxxx|xxxx|xx..|     10 of 12 slots filled, B = 4
    fork "a" as "b"    [0, 1, 2]   blocks 0, 1, 2 have two owners each
    append to "b"      [0, 1, 3]   the shared partial block 2 is copied to 3, then written
    free list          front -> 4 5 6 7 <- back

Blocks are taken from the front of the free list and go back to its end, a request's blocks in reverse order,
as in vLLM's block pool with prefix caching off. Every block given to the pool is usable: the null block that
vLLM sets aside is the caller's affair. Nothing here knows which tokens live; `evict` is told.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from kvreclaim import validate
from kvreclaim.errors import InputError


class PoolIntegrityError(RuntimeError):
    """The pool contradicts itself: a bug in the pool or a hand on its private fields."""


@dataclass(frozen=True)
class Allocation:
    """What a request received.

    Attributes
    ----------
    blocks
        The new blocks in the order of its table; empty when the last block had room.
    copied
        (source, destination) if the shared last block had to be copied before writing, else None; the
        destination is the first of `blocks`.
    """

    blocks: tuple[int, ...]
    copied: tuple[int, int] | None = None


@dataclass(frozen=True)
class Eviction:
    """What an eviction gave back.

    Attributes
    ----------
    freed
        Blocks that returned to the free list, in table order.
    still_shared
        Blocks that left this request's table but stay held by other owners.
    dead_slots
        Filled slots of the request that are dead but lie in blocks it still holds.
    """

    freed: tuple[int, ...]
    still_shared: tuple[int, ...]
    dead_slots: int


class BlockPool:
    """Blocks of one size, handed to requests and taken back.

    A request's length is physical: the filled slots of the blocks it holds, dead ones included. All its
    blocks but the last are full. Whatever does not fit or is refused leaves the pool as it was. Every method
    raises `InputError` for a request it does not know, or knows already where a new one is meant.

    Parameters
    ----------
    blocks
        Usable blocks, at least 1.
    block_size
        B in tokens (slots), at least 1.

    Raises
    ------
    InputError
        If either is not a whole number of at least 1, or there are more than 2^24 blocks.
    """

    def __init__(self, blocks: SupportsIndex, block_size: SupportsIndex) -> None:
        whole = validate.positive_int(blocks, "blocks")
        self._blocks = validate.check_at_most(whole, validate.LARGEST_POOL, "blocks", "the most")
        self._block_size = validate.check_block_size(block_size)
        self._free = deque(range(self._blocks))
        self._owners = [0] * self._blocks
        self._tables: dict[Hashable, list[int]] = {}
        self._lengths: dict[Hashable, int] = {}

    @property
    def blocks(self) -> int:
        """All blocks of the pool."""
        return self._blocks

    @property
    def block_size(self) -> int:
        """Slots per block."""
        return self._block_size

    @property
    def free_blocks(self) -> int:
        """Blocks in the free list."""
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        """Blocks held by at least one request; a shared block counts once."""
        return self._blocks - len(self._free)

    @property
    def requests(self) -> tuple[Hashable, ...]:
        """The known requests, oldest first; one whose every block was evicted is still known."""
        return tuple(self._tables)

    def block_table(self, request: Hashable) -> tuple[int, ...]:
        """Return the blocks of the request in the order of its slots."""
        return tuple(self._known(request))

    def length(self, request: Hashable) -> int:
        """Return the filled slots of the request, dead ones included."""
        self._known(request)
        return self._lengths[request]

    def owners(self, block: SupportsIndex) -> int:
        """Return how many requests hold the block; 0 if it is free."""
        number = validate.non_negative_int(block, "block")
        return self._owners[validate.check_at_most(number, self._blocks - 1, "block", "the last block")]

    def can_allocate(self, tokens: SupportsIndex) -> bool:
        """Return whether a new request of so many tokens fits now."""
        return self._blocks_for(validate.positive_int(tokens, "tokens")) <= self.free_blocks

    def allocate(self, request: Hashable, tokens: SupportsIndex) -> Allocation | None:
        """Give a new request all the blocks it needs, or none and return None.

        `tokens` are the slots to fill; `InputError` if fewer than 1.
        """
        self._unknown(request)
        slots = validate.positive_int(tokens, "tokens")
        needed = self._blocks_for(slots)
        if needed > self.free_blocks:
            return None
        taken = self._take(needed)
        self._tables[request] = taken
        self._lengths[request] = slots
        return Allocation(tuple(taken))

    def append(self, request: Hashable, tokens: SupportsIndex = 1) -> Allocation | None:
        """Fill further slots of a request, all of them or none and return None.

        A partial last block with other owners is copied first, and the request's own copy filled
        (copy on write: Kwon et al., PagedAttention, section 4.4). `InputError` if tokens < 1.
        """
        table = self._known(request)
        slots = self._lengths[request] + validate.positive_int(tokens, "tokens")
        must_copy = self._lengths[request] % self._block_size > 0 and self._owners[table[-1]] > 1
        needed = self._blocks_for(slots) - len(table) + must_copy
        if needed > self.free_blocks:
            return None
        taken = self._take(needed)
        copied = None
        if must_copy:
            copied = (table.pop(), taken[0])
            self._release([copied[0]])
        table.extend(taken)
        self._lengths[request] = slots
        return Allocation(tuple(taken), copied)

    def admit(self, requests: Mapping[Hashable, SupportsIndex]) -> int:
        """Allocate new requests in order until one does not fit; return how many got in.

        First come, first served: nothing behind the first misfit is tried. `requests` maps each new request
        to its tokens; if one is unusable, `InputError` is raised before any is admitted.
        """
        if not isinstance(requests, Mapping):
            raise InputError("requests must map each new request to its tokens: pass a dict")
        for request, tokens in requests.items():
            self._unknown(request)
            validate.positive_int(tokens, "tokens")
        for admitted, (request, tokens) in enumerate(requests.items()):
            if self.allocate(request, tokens) is None:
                return admitted
        return len(requests)

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Make a new request, the child, that shares every block of the parent."""
        table = self._known(parent)
        self._unknown(child)
        for block in table:
            self._owners[block] += 1
        self._tables[child] = table.copy()
        self._lengths[child] = self._lengths[parent]

    def evict(self, request: Hashable, keep: ArrayLike) -> Eviction:
        """Take from a request every block without a live slot; nothing is copied.

        A block that others hold too leaves this table only; it returns when its last owner lets go. Later
        blocks move up in the table. If the partial last block goes, the next token opens a new block.

        Parameters
        ----------
        request
            A known request.
        keep
            bool [length], True = the slot's token lives; `InputError` unless it is one bool per filled slot.
        """
        table = self._known(request)
        live = validate.booleans(keep, self._lengths[request], f"keep for request {request!r}")
        starts = np.arange(0, live.size, self._block_size)
        holds_live = np.logical_or.reduceat(live, starts) if table else live
        leaving = [block for block, stays in zip(table, holds_live, strict=True) if not stays]
        still_shared = tuple(block for block in leaving if self._owners[block] > 1)
        staying = np.repeat(holds_live, min(self._block_size, live.size))[: live.size]
        table[:] = [block for block, stays in zip(table, holds_live, strict=True) if stays]
        self._lengths[request] = int(np.count_nonzero(staying))
        self._release(reversed(leaving))
        return Eviction(
            freed=tuple(block for block in leaving if self._owners[block] == 0),
            still_shared=still_shared,
            dead_slots=int(np.count_nonzero(staying & ~live)),
        )

    def truncate(self, request: Hashable, slots: SupportsIndex) -> tuple[int, ...]:
        """Keep the first slots of a request, such as those its survivors were packed into.

        Returns the blocks that came back, in the order they joined the free list; `InputError` if the request
        has fewer slots.
        """
        table = self._known(request)
        left = validate.non_negative_int(slots, "slots")
        validate.check_at_most(left, self._lengths[request], "slots", f"the length of request {request!r}")
        leaving = table[self._blocks_for(left) :]
        del table[self._blocks_for(left) :]
        self._lengths[request] = left
        self._release(reversed(leaving))
        return tuple(block for block in reversed(leaving) if self._owners[block] == 0)

    def free(self, request: Hashable) -> tuple[int, ...]:
        """Forget a request; return the blocks that came back, in the order they joined the free list."""
        table = self._known(request)
        del self._tables[request], self._lengths[request]
        self._release(reversed(table))
        return tuple(block for block in reversed(table) if self._owners[block] == 0)

    def check_integrity(self) -> None:
        """Verify that free + held = total and that every block is counted exactly as often as it is held.

        Raises `PoolIntegrityError` with the first contradiction found.
        """
        _require(self._tables.keys() == self._lengths.keys(), "tables and lengths name different requests")
        for request, table in self._tables.items():
            length = self._lengths[request]
            _require(len(set(table)) == len(table), f"request {request!r} holds a block twice: {table}")
            expected = self._blocks_for(length)
            _require(
                len(table) == expected,
                f"request {request!r} of {length} slots holds {len(table)} blocks, needs {expected}",
            )
        held = Counter(block for table in self._tables.values() for block in table)
        free = Counter(self._free)
        for block in range(self._blocks):
            _require(
                self._owners[block] == held[block],
                f"block {block} counts {self._owners[block]} owners, {held[block]} tables hold it",
            )
            _require(
                free[block] == (held[block] == 0),
                f"block {block} is {free[block]} times in the free list and in {held[block]} tables",
            )
        _require(
            len(self._free) + len(held) == self._blocks,
            f"{len(self._free)} free and {len(held)} held blocks, {self._blocks} in all",
        )

    def _blocks_for(self, slots: int) -> int:
        return -(-slots // self._block_size)

    def _known(self, request: Hashable) -> list[int]:
        if not self._holds(request):
            raise InputError(f"request {request!r} is not in the pool: pass one that was allocated or forked")
        return self._tables[request]

    def _unknown(self, request: Hashable) -> None:
        if self._holds(request):
            raise InputError(f"request {request!r} is in the pool already: pass a new one, or append to it")

    def _holds(self, request: Hashable) -> bool:
        try:
            return request in self._tables
        except TypeError as error:
            raise InputError(f"{request!r} can't name a request: pass a text or a number") from error

    def _take(self, blocks: int) -> list[int]:
        """Take so many blocks, which must be there, from the front of the free list."""
        taken = [self._free.popleft() for _ in range(blocks)]
        for block in taken:
            self._owners[block] = 1
        return taken

    def _release(self, blocks: Iterable[int]) -> None:
        """Give up one ownership of each block; the last one returns it to the end of the free list."""
        for block in blocks:
            self._owners[block] -= 1
            if self._owners[block] == 0:
                self._free.append(block)


def _require(holds: bool, contradiction: str) -> None:
    if not holds:
        raise PoolIntegrityError(contradiction)
