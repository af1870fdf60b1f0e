"""How long a step of a serving engine takes: base + per decode + per KV token + per prefill token."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path

from kvreclaim.errors import InputError


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, linear in what it computes.

    Parameters
    ----------
    base
        Seconds of any step: launches, the scheduler, the weights read once.
    decode
        Seconds for each request that computes one token.
    kv_token
        Seconds for each KV pair (of one token, all layers) that attention reads.
    prefill_token
        Seconds for each token of a prompt.
    source
        Where the numbers come from: ``fitted``, ``roofline`` or ``given``.

    Raises
    ------
    InputError
        If one is negative or not finite, or all are 0.
    """

    base: float
    decode: float
    kv_token: float
    prefill_token: float
    source: str = "given"

    def __post_init__(self) -> None:
        for name in CONSTANTS:
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InputError(f"step time: {name} is {value}; pass seconds, at least 0")
        if not any(self.constants):
            raise InputError("step time: all constants are 0; pass seconds greater than 0")

    @property
    def constants(self) -> tuple[float, float, float, float]:
        """The four constants, in the order of `CONSTANTS`."""
        return self.base, self.decode, self.kv_token, self.prefill_token

    def seconds(self, decodes: int, kv_tokens: int, prefill_tokens: int) -> float:
        """Return the seconds of a step, rounded as the kernel rounds them."""
        return (
            self.base
            + self.decode * decodes
            + self.kv_token * kv_tokens
            + self.prefill_token * prefill_tokens
        )


def read_step_time(text: str, folder: Path = Path()) -> tuple[float, ...]:
    """Return the four constants that a text gives, or the JSON file of ``calibrate step`` that it names.

    Parameters
    ----------
    text
        base,decode,kv_token,prefill_token in seconds, or a file; empty: none.
    folder
        What the file's name is relative to.

    Raises
    ------
    InputError
        If it is neither.
    """
    if not text:
        return ()
    try:
        if (folder / text).is_file():
            found = json.loads((folder / text).read_bytes())["constants"]
            return tuple(float(found[name]["value"]) for name in CONSTANTS)
        return tuple(float(part) for part in text.split(","))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"step_time {text!r}: pass base,decode,kv_token,prefill_token in seconds, or the JSON of "
            "`kvreclaim calibrate step`"
        ) from error


CONSTANTS = tuple(field.name for field in fields(StepTime))[:4]
