"""Presses as text: ``snapkv``, ``snapkv:window_size=32``, ``adakv:alpha_safeguard=0.1:snapkv``.

Parts are joined by colons: a press, its parameters, then the press that it wraps, with its own parameters.
Nothing needs quoting in a shell.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvreclaim.errors import InputError


@dataclass(frozen=True)
class NamedPress:
    """A press's name and the parameters given to it."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)


def parse(text: str) -> tuple[NamedPress, ...]:
    """Split a text into presses, the outermost first.

    Raises
    ------
    InputError
        If a part is empty, or a parameter comes before any name, twice, or is not finite.
    """
    presses: list[NamedPress] = []
    for part in text.split(":"):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or (equals and not (presses and value)):
            raise InputError(f"{text!r} is no press: write name, name:parameter=value or wrapper:name")
        if not equals:
            presses.append(NamedPress(key))
            continue
        if key in presses[-1].parameters:
            raise InputError(f"{text!r} gives {key} twice: give it once")
        presses[-1].parameters[key] = _value(value)
    return tuple(presses)


def written(presses: Sequence[NamedPress]) -> str:
    """Return presses as a text that `parse` takes; numbers, texts and truth values are parameters."""
    return ":".join(
        part
        for press in presses
        for part in (press.name, *(f"{key}={value}" for key, value in press.parameters.items()))
    )


def _value(text: str) -> Any:
    """Return a Python literal that is finite, a truth value in lower case, or the text itself."""
    truth = {"true": True, "false": False, "none": None}
    if text.lower() in truth:
        return truth[text.lower()]
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        raise InputError(f"a parameter is {text}: pass a finite number")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
