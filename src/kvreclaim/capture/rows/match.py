"""Rows of a KV cache, told apart by a hash, so that survivors are found from outside a press.

A press may move rows, drop rows, or mark rows dead; it hands back tensors and says nothing of positions. A
row here is one head's K and V of one token. Two rows of a layer are equal only if both K and V are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from kvreclaim.errors import InputError

_INTEGER_OF_BYTES = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
_VALUE_FACTOR = 0x27D4EB2F165667C5  # odd, so that K and V do not cancel


@dataclass(frozen=True)
class Rows:
    """64-bit hashes of the K rows and of the V rows of one layer, each ``[kv_heads, rows]``."""

    keys: Tensor
    values: Tensor

    @cached_property
    def pairs(self) -> Tensor:
        """Hashes of K and V together, ``[kv_heads, rows]``."""
        return self.keys + self.values * _VALUE_FACTOR

    @cached_property
    def ordered(self) -> tuple[Tensor, Tensor]:
        """`pairs` in ascending order, and the row of each; of equals the earlier first."""
        pairs, order = self.pairs.sort(dim=-1, stable=True)
        return pairs, order

    @property
    def count(self) -> int:
        """Rows of each head."""
        return int(self.keys.shape[1])


@dataclass(frozen=True)
class Match:
    """Which rows survived, ``keep`` bool ``[kv_heads, rows]``; ``ambiguous`` had equals that did not."""

    keep: Tensor
    ambiguous: int


def rows_of(keys: Tensor, values: Tensor) -> Rows:
    """Hash the rows of ``[1, kv_heads, rows, head_dim]`` keys and values; equal bits give equal hashes.

    Two distinct rows collide with a probability of at most about 2^-48, where the low half of every number is
    zero, 2^-64 otherwise. A collision would show as an ambiguous row.
    """
    return Rows(_hash(keys[0]), _hash(values[0]))


def _hash(rows: Tensor) -> Tensor:
    rows = rows.detach().contiguous()
    width = rows.shape[-1] * rows.element_size()
    whole = next(size for size in (8, 4, 2, 1) if width % size == 0)  # the widest integers that fill a row
    words = rows.view(_INTEGER_OF_BYTES[whole]).to(torch.int64)
    return (words * _factors(words.shape[-1], rows.device)).sum(-1)


@cache
def _factors(count: int, device: torch.device) -> Tensor:
    """Return odd 64-bit factors, the same in every process."""
    generator = torch.Generator().manual_seed(0x6B767265)
    factors = torch.randint(-(2**62), 2**62, (count,), generator=generator, dtype=torch.int64)
    return (factors * 2 + 1).to(device)


def match(before: Rows, after: Rows, alive: Tensor | None = None) -> Match:
    """Find the rows of ``before`` that are still in ``after``.

    Parameters
    ----------
    before
        The rows as the layer wrote them.
    after
        The rows that a press left, in any order.
    alive
        Bool ``[kv_heads, rows of after]``: False where the press marked a row dead; None: it marked none.

    Returns
    -------
    Match
        Of equal rows as many are kept as survive, the latest first: they are the same to the attention, and
        `ambiguous` counts them.

    Raises
    ------
    InputError
        If a living row is none of those before: the press rewrote it.
    """
    if after is before:
        return Match(torch.ones_like(before.keys, dtype=torch.bool) if alive is None else alive, 0)
    keep = torch.zeros_like(before.keys, dtype=torch.bool)
    ordered, order = before.ordered
    ambiguous = 0
    for head, now in enumerate(after.pairs):
        living = now if alive is None else now[alive[head]]
        found, unclear = _places(ordered[head], living.sort().values)
        if found is None:
            raise InputError(_rewritten(before, after, alive))
        keep[head, order[head, found]] = True
        ambiguous += unclear
    return Match(keep, ambiguous)


def _places(ordered: Tensor, living: Tensor) -> tuple[Tensor | None, int]:
    """Return a place in ``ordered`` for each of ``living``, all sorted, and how many had a choice of places.

    The n-th of equal rows takes the n-th last of its equals. None where a row has no equal left.
    """
    first, last = torch.searchsorted(ordered, living), torch.searchsorted(ordered, living, right=True)
    first_alike, last_alike = (
        torch.searchsorted(living, living),
        torch.searchsorted(living, living, right=True),
    )
    nth = torch.arange(len(living), device=living.device) - first_alike
    place = last - 1 - nth
    if (place < first).any():
        return None, 0
    return place, int((last - first != last_alike - first_alike).sum())


def _rewritten(before: Rows, after: Rows, alive: Tensor | None) -> str:
    """Return which of K and V is not as it was."""

    def known(side: str) -> bool:
        old, new = getattr(before, side), getattr(after, side)
        found = torch.stack([torch.isin(now, was) for was, now in zip(old, new, strict=True)])
        return bool((found if alive is None else found | ~alive).all())

    keys, values = known("keys"), known("values")
    if keys and not values:
        what = "it rewrites values, as a merge does"
    elif values and not keys:
        what = "it rewrites keys, re-rotated or with channels cleared"
    else:
        what = "it rewrites keys and values"
    return f"{what}: a keep mask can't say that; pass a press that only drops rows"
