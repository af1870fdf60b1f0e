"""The rows of one layer over a generation: which were written, and when each was evicted."""

from __future__ import annotations

import torch
from torch import Tensor

from kvreclaim.capture.rows.match import Rows, match

_GONE = 0x5DEECE66D  # stands for the hash of a row that is dead, so that it isn't found again


class LayerHistory:
    """Follows the rows of one layer from step to step.

    Attributes
    ----------
    evicted_at
        int32 ``[kv_heads, rows written]``: the step that evicted the row, ``never`` for the living.
    """

    def __init__(self, never: int) -> None:
        self._never = never
        self._rows: Rows | None = None
        self._in_cache = 0
        self.evicted_at = torch.empty(0)

    def write(self, new: Rows) -> None:
        """Add the rows that a step wrote."""
        fresh = torch.full(new.keys.shape, self._never, dtype=torch.int32, device=new.keys.device)
        if self._rows is None:
            self._rows, self.evicted_at = new, fresh
        else:
            keys = torch.cat([self._rows.keys, new.keys], dim=1)
            self._rows = Rows(keys, torch.cat([self._rows.values, new.values], dim=1))
            self.evicted_at = torch.cat([self.evicted_at, fresh], dim=1)
        self._in_cache += new.count

    def unchanged(self, rows_in_cache: int) -> bool:
        """Say whether the cache holds as many rows as were last seen and written since."""
        return rows_in_cache == self._in_cache

    def settle(self, left: Rows, alive: Tensor | None, step: int) -> None:
        """Take down which rows a step evicted.

        Parameters
        ----------
        left
            The rows that the cache holds now.
        alive
            Bool ``[kv_heads, rows left]``, False for rows marked dead; None if none are.
        step
            The step.

        Raises
        ------
        InputError
            If a living row is none of those that lived before.
        """
        if self._rows is None:
            raise RuntimeError("settle follows write")
        keep = match(self._rows, left, alive).keep
        dead = ~keep
        self.evicted_at[dead & (self.evicted_at == self._never)] = step
        self._rows = Rows(
            self._rows.keys.masked_fill(dead, _GONE), self._rows.values.masked_fill(dead, _GONE)
        )
        self._in_cache = left.count
