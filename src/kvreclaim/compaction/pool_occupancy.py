"""What many requests in one pool hold, block by block: what compaction in steps looks at."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim.errors import InputError
from kvreclaim.validate import check_block_size


@dataclass(frozen=True, eq=False)
class PoolOccupancy:
    """The blocks of the requests' tables, an entry for each block of each table.

    Parameters
    ----------
    request
        Whole numbers ``[entries]``, ascending from 0 without a gap: whose table the entry is of.
    live
        bool ``[entries, block_size]``: slots that hold a live token, which moves whole; or
        ``[heads, entries, block_size]``: slots that hold a live pair of each head, which moves its own.
    writable
        bool ``[entries, block_size]``: slots that may be written to. Not those of a block that other tables
        hold as well, nor those that wait for tokens to come.
    movable
        bool ``[entries]``: blocks that may be emptied, and given back; all their slots are writable. Not the
        block that the next token will be written to.

    Raises
    ------
    InputError
        If the arrays don't fit each other.
    """

    request: NDArray[np.int64]
    live: NDArray[np.bool_]
    writable: NDArray[np.bool_]
    movable: NDArray[np.bool_]

    def __post_init__(self) -> None:
        entries, shape = len(self.request), self.live.shape
        if len(shape) not in (2, 3) or shape[-2:] != self.writable.shape or shape[-2] != entries:
            raise InputError(
                "live and writable slots: pass bool [entries, block_size], an entry a block; live ones of "
                "heads [heads, entries, block_size]"
            )
        if self.movable.shape != (entries,) or not self.writable[self.movable].all():
            raise InputError("movable: pass a bool for each entry, True only where all slots are writable")
        steps = np.diff(self.request)
        if entries and (self.request[0] != 0 or not ((steps == 0) | (steps == 1)).all()):
            raise InputError("request: pass numbers that ascend from 0 without a gap, request by request")

    @property
    def block_size(self) -> int:
        """Slots of a block."""
        return int(self.live.shape[-1])

    @property
    def by_head(self) -> NDArray[np.bool_]:
        """The live slots ``[heads, entries, block_size]``; whole tokens are those of one head."""
        return self.live if self.live.ndim == 3 else self.live[None]

    @property
    def requests(self) -> int:
        """Requests that hold a block."""
        return int(self.request[-1]) + 1 if len(self.request) else 0

    @classmethod
    def of_tables(
        cls,
        tables: Mapping[Hashable, Sequence[int]],
        live: Mapping[Hashable, ArrayLike],
        shared: Sequence[bool] | NDArray[np.bool_],
        block_size: SupportsIndex,
    ) -> PoolOccupancy:
        """Make one from block tables, request by request in their order; those without a block are left out.

        Parameters
        ----------
        tables
            By request: the pool's numbers of its blocks.
        live
            By request: a bool for each slot that it filled, block after block; all but the last are full.
            Or ``[heads, slots]``, of all requests as many heads.
        shared
            By number of the block: whether several tables hold it.
        block_size
            Slots of a block.

        Raises
        ------
        InputError
            If a request's slots don't fill its blocks.
        """
        size = check_block_size(block_size)
        held = {request: table for request, table in tables.items() if len(table)}
        numbers = [block for table in held.values() for block in table]
        heads = {np.shape(live[request])[:-1] for request in held} or {()}
        if len(heads) > 1 or len(min(heads)) > 1:
            raise InputError("live slots: pass [slots] for every request, or [heads, slots], as many heads")
        occupancy = np.zeros((*min(heads), len(numbers), size), np.bool_)
        writable = np.zeros((len(numbers), size), np.bool_)
        start = 0
        for request, table in held.items():
            alive = np.asarray(live[request])
            filled = alive.shape[-1] if alive.ndim else -1
            if alive.dtype != np.bool_ or -(-filled // size) != len(table):
                raise InputError(
                    f"request {request!r} holds {len(table)} blocks of {size} slots: pass a bool for each "
                    "slot that it filled, all blocks but the last full"
                )
            own, fill = slice(start, start + len(table)), len(table) * size - filled
            padded = np.pad(alive, [*((0, 0) for _ in min(heads)), (0, fill)])
            occupancy[..., own, :] = padded.reshape(*min(heads), len(table), size)
            writable[own].reshape(-1)[:filled] = True
            start += len(table)
        writable[np.asarray(shared, np.bool_)[numbers]] = False
        owner = np.repeat(np.arange(len(held)), [len(table) for table in held.values()])
        return cls(owner, occupancy, writable, movable=np.asarray(writable.all(axis=1)))
