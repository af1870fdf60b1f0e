"""What many requests in one pool hold, block by block: what compaction in steps looks at."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim.errors import InputError
from kvreclaim.validate import check_block_size, counted, shown


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
        for name, kinds, words in (
            ("request", "iu", "whole numbers [entries]"),
            ("live", "b", "bool [entries, block_size]"),
            ("writable", "b", "bool [entries, block_size]"),
            ("movable", "b", "bool [entries]"),
        ):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
                raise InputError(f"{name} is {_kind_of(array)}: pass an array, {words}")
        if self.request.ndim != 1:
            raise InputError(f"request has shape {self.request.shape}: pass a number for each block")
        entries, shape = len(self.request), self.live.shape
        if len(shape) not in (2, 3) or shape[-2:] != self.writable.shape or shape[-2] != entries:
            raise InputError(
                "live and writable slots: pass bool [entries, block_size], an entry a block; live ones of "
                "heads [heads, entries, block_size]"
            )
        if self.movable.shape != (entries,) or not self.writable[self.movable].all():
            raise InputError("movable: pass a bool for each entry, True only where all slots are writable")
        object.__setattr__(self, "request", self.request.astype(np.int64))  # sums of it must not overflow
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
            If a request's slots don't fill its blocks, a number is none of a block, or requests hold a block
            together that ``shared`` does not name.
        """
        size = check_block_size(block_size)
        if not isinstance(tables, Mapping) or not isinstance(live, Mapping):
            raise InputError("tables and live slots: pass mappings from requests to blocks and to slots")
        held = {
            request: numbers for request, table in tables.items() if len(numbers := _blocks(request, table))
        }
        if absent := [request for request in held if request not in live]:
            raise InputError(f"request {shown(absent[0])} has blocks and no live slots: pass both")
        alive_of = {
            request: _booleans(live[request], f"live slots of request {shown(request)}") for request in held
        }
        numbers = np.concatenate([*held.values(), np.zeros(0, np.int64)])
        holds_shared = _booleans(shared, "shared")
        _check_owners(held, numbers, holds_shared)
        heads = {alive_of[request].shape[:-1] for request in held} or {()}
        if len(heads) > 1 or len(min(heads)) > 1:
            raise InputError("live slots: pass [slots] for every request, or [heads, slots], as many heads")
        occupancy = np.zeros((*min(heads), len(numbers), size), np.bool_)
        writable = np.zeros((len(numbers), size), np.bool_)
        start = 0
        for request, table in held.items():
            alive = alive_of[request]
            filled = alive.shape[-1] if alive.ndim else -1
            if -(-filled // size) != len(table):
                raise InputError(
                    f"request {shown(request)} holds {counted(len(table), 'block')} of {size} slots: pass a "
                    "bool for each slot that it filled, all blocks but the last full"
                )
            own, fill = slice(start, start + len(table)), len(table) * size - filled
            padded = np.pad(alive, [*((0, 0) for _ in min(heads)), (0, fill)])
            occupancy[..., own, :] = padded.reshape(*min(heads), len(table), size)
            writable[own].reshape(-1)[:filled] = True
            start += len(table)
        writable[holds_shared[numbers]] = False
        owner = np.repeat(np.arange(len(held)), [len(table) for table in held.values()])
        return cls(owner, occupancy, writable, movable=np.asarray(writable.all(axis=1)))


def _kind_of(value: object) -> str:
    return f"of {value.dtype}" if isinstance(value, np.ndarray) else shown(value)


def _array(values: object) -> NDArray[Any] | None:
    """Return values as an array; None for what is none in CPU memory, such as ragged nesting."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _booleans(values: object, what: str) -> NDArray[np.bool_]:
    array = _array(values)
    if array is not None and array.size == 0:
        array = array.astype(np.bool_)
    if array is None or (array.dtype != np.bool_ and not np.isin(array, (0, 1)).all()):
        raise InputError(f"{what}: pass an array of bool, True or False for each")
    return array.astype(np.bool_)


def _blocks(request: Hashable, table: object) -> NDArray[np.int64]:
    """Return the numbers of a request's blocks."""
    array = _array(table)
    if array is not None and array.size == 0:
        return np.zeros(0, np.int64)
    if array is None or array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0:
        raise InputError(f"blocks of request {shown(request)}: pass their numbers, whole and at least 0")
    return array.astype(np.int64)


def _check_owners(
    held: Mapping[Hashable, NDArray[np.int64]], numbers: NDArray[np.int64], shared: NDArray[np.bool_]
) -> None:
    """Refuse a block that ``shared`` does not count, and one that is held twice and not shared."""
    if shared.ndim != 1:
        raise InputError("shared: pass a bool for each block of the pool, by its number")
    if numbers.size and (most := int(numbers.max())) >= len(shared):
        raise InputError(f"block {most} is in a table, and shared has {len(shared)}: pass a bool for each")
    owner = np.repeat(np.arange(len(held)), [len(table) for table in held.values()])
    order = np.argsort(numbers, kind="stable")
    again = np.flatnonzero(np.diff(numbers[order]) == 0)
    twice = [
        place
        for place in again
        if owner[order[place]] == owner[order[place + 1]] or not shared[numbers[order[place]]]
    ]
    if twice:
        one, other = order[twice[0]], order[twice[0] + 1]
        requests = list(held)
        of = shown(requests[owner[one]])
        if owner[one] == owner[other]:
            raise InputError(f"block {numbers[one]} is twice in the table of request {of}: pass each once")
        raise InputError(
            f"block {numbers[one]} is in the tables of requests {of} and {shown(requests[owner[other]])}: "
            "pass shared as True for it"
        )
