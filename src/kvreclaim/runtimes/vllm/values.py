"""Checks of single values of the plugin's option."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from kvreclaim.errors import InputError


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def may_be_path(value: object) -> bool:
    """Return whether a value is None or a text that some file could be named."""
    if value is None:
        return True
    return isinstance(value, str) and value != "" and "\0" not in value and value.isprintable()


def is_file(path: str) -> bool:
    """Return whether there is such a file."""
    try:
        return Path(path).is_file()
    except OSError:  # such as a name too long
        return False


def one_of(value: object, known: tuple[str, ...], what: str) -> None:
    """Raise InputError unless a value is one of those known."""
    if value not in known:
        raise InputError(f"{what} is {value!r}: pass one of {', '.join(known)}")
