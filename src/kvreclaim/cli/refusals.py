"""What the parser of the command line refuses, in the words of this house."""

from __future__ import annotations

from typing import Any

import typer

from kvreclaim.validate import shown

_NUMBERS = {"int": "a whole number", "float": "a number"}
_LIMITS = {"le": "at most", "lt": "less than", "ge": "at least", "gt": "more than"}


def in_words(error: typer.TyperException) -> str:
    """Return one line: of a value of the wrong type or out of range, which it is and what to pass.

    Typer leaves those to Pydantic, whose message lacks the value and whose error has it.
    """
    errors = getattr(error.__cause__, "errors", None)
    parameter = getattr(error, "param", None)
    if errors is None or parameter is None:
        return error.format_message()
    first: dict[str, Any] = errors()[0]
    limits: dict[str, Any] = first.get("ctx", {})
    kind = first["type"].partition("_")[0]
    wanted = [_NUMBERS[kind]] if kind in _NUMBERS else []
    wanted += [f"{words} {limits[key]}" for key, words in _LIMITS.items() if key in limits]
    if not wanted:
        return error.format_message()
    option = max(parameter.opts, key=len)
    return f"{option} is {shown(first['input'])}: pass {' '.join(wanted)}"
