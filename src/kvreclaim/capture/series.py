"""The ledger as a time series: when each KV pair of a generation was evicted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask, MaskMetadata
from kvreclaim.layout import BlockLayout, KVGeometry
from kvreclaim.ledger import Ledger, audit

NEVER = np.iinfo(np.int32).max
"""The step of an eviction that did not happen."""


@dataclass(frozen=True)
class DecodingRecord:
    """Which KV pairs live after each step of a generation.

    Step 0 is the prompt; step s has read s generated tokens more. A pair that is evicted does not come back.

    Parameters
    ----------
    name
        The press.
    model
        The model.
    prompt_length
        Tokens of the prompt.
    evicted_at
        int32 ``[layers, kv_heads, prompt_length + steps]``: the step that evicted the pair, `NEVER` if none.
    token_ids
        The tokens read after the prompt, one a step.
    """

    name: str
    model: str
    prompt_length: int
    evicted_at: NDArray[np.int32]
    token_ids: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Steps after the prompt."""
        return len(self.token_ids)

    def mask(self, step: int) -> KeepMask:
        """Return the keep mask ``[layers, kv_heads, prompt_length + step]`` after a step.

        Raises
        ------
        InputError
            If there is no such step.
        """
        if not 0 <= step <= self.steps:
            raise InputError(f"step {step}: pass one from 0 to {self.steps}")
        written = self.evicted_at[:, :, : self.prompt_length + step]
        metadata = MaskMetadata(self.model, self.name or None, prompt_length=self.prompt_length)
        return KeepMask(written > step, self.name, metadata)

    def ledgers(
        self, layout: BlockLayout, geometry: KVGeometry | None = None, steps: Iterable[int] | None = None
    ) -> dict[int, Ledger]:
        """Return the ledger after each of ``steps``, by default after all, from the prompt on.

        A ledger counts every block that was ever needed; ``blocks - free_blocks`` are those still held.
        """
        chosen = range(self.steps + 1) if steps is None else steps
        return {step: audit(self.mask(step), layout, geometry) for step in chosen}
