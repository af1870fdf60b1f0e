"""Policies as a runtime attends to them: ``effective:block_size=32:snapkv``.

A runtime that can only drop whole blocks attends to a policy's effective mask. Such a name measures that: the
mask of the press that follows, rounded out to the blocks of a shared table.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvreclaim.effective import effective_mask
from kvreclaim.errors import InputError
from kvreclaim.grammar import parse
from kvreclaim.keep import KeepMask
from kvreclaim.layout import BlockLayout

EFFECTIVE = "effective"


@dataclass(frozen=True)
class Attended:
    """What is captured for a policy, and what of it stays attended.

    Parameters
    ----------
    press
        Name of the press, as `kvreclaim.capture.presses.make` takes it.
    layout
        Blocks that leave only whole; None where attention skips what the press drops.
    """

    press: str
    layout: BlockLayout | None = None

    def mask(self, recorded: KeepMask) -> KeepMask:
        """Return what attention sees of a recorded mask."""
        return recorded if self.layout is None else effective_mask(recorded, self.layout)


def attended(policy: str) -> Attended:
    """Return what a policy's name stands for.

    Raises
    ------
    InputError
        If ``effective`` wraps no press, or has another parameter than a block size.
    """
    head, *rest = parse(policy)
    if head.name != EFFECTIVE:
        return Attended(policy)
    if not rest or set(head.parameters) - {"block_size"}:
        raise InputError(f"{policy}: pass effective:PRESS or effective:block_size=TOKENS:PRESS")
    press = policy.split(":", 1 + len(head.parameters))[-1]
    return Attended(press, BlockLayout(head.parameters.get("block_size", 16)))
