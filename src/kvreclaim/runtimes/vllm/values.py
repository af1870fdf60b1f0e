"""Checks of single values of the plugin's option."""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real
from pathlib import Path

from kvreclaim.errors import InputError
from kvreclaim.validate import shown

_KINDS: dict[str, tuple[type, str]] = {
    "str": (str, "a text"),
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "true or false"),
}
"""Annotations of an option's fields: the type, and what to pass."""


def check_type(value: object, annotation: str, what: str) -> None:
    """Raise InputError unless a value is of the type that a field is annotated with, such as ``int | None``.

    A truth value is no number, and a number is finite.
    """
    name, *rest = annotation.split(" | ")
    if value is None and rest == ["None"]:
        return
    kind, words = _KINDS[name]
    fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    if not fits or (isinstance(value, float) and not isfinite(value)):
        raise InputError(f"{what} is {shown(value)}: pass {words}")


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
