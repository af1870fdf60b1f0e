"""Small checks of single arguments; each returns the plain Python value or raises `InputError`.

Booleans are refused where a number is meant (`True` is not a block size of 1), and NaN everywhere.
"""

import math
from collections.abc import Sequence
from numbers import Real
from operator import index
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim.errors import InputError

LARGEST_BLOCK = 2**31 - 1
LARGEST_POOL = 2**24  # blocks; each is a few Python objects, and more would fill the memory


def non_negative_int(value: SupportsIndex, what: str) -> int:
    """Return `value` as an int of at least 0; `what` names it in the error message."""
    return _integer(value, what, least=0)


def positive_int(value: SupportsIndex, what: str) -> int:
    """Return `value` as an int of at least 1; `what` names it in the error message."""
    return _integer(value, what, least=1)


def positive(value: float, what: str) -> float:
    """Return `value` as a finite float greater than 0; `what` names it in the error message."""
    number = _real(value)
    if not 0.0 < number < math.inf:
        raise InputError(f"{what} is {shown(value)}: pass a finite number greater than 0")
    return number


def fraction(value: float, what: str) -> float:
    """Return `value` as a float in [0, 1]; `what` names it in the error message."""
    number = _real(value)
    if not 0.0 <= number <= 1.0:
        raise InputError(f"{what} is {shown(value)}: pass a number from 0 to 1")
    return number


def fraction_array(values: Sequence[float] | NDArray[np.float64], what: str) -> NDArray[np.float64]:
    """Return `values` as a float64 array of entries in [0, 1]; `what` names it in the error message."""
    try:
        array = np.asarray(values)
        numeric = array.dtype.kind in "iuf"
    except ValueError:  # ragged nesting
        numeric = False
    if not numeric or not np.all((array >= 0) & (array <= 1)):
        raise InputError(
            f"{what} must be numbers from 0 to 1, without NaN: pass a number or an array of them"
        )
    return array.astype(np.float64)


def check_block_size(block_size: SupportsIndex) -> int:
    """Return the block size in tokens, at least 1, in 31 bits."""
    size = positive_int(block_size, "block_size")
    if size > LARGEST_BLOCK:
        raise InputError(f"block_size is {shown(size)}: pass a whole number, at most {LARGEST_BLOCK}")
    return size


def check_ratio(ratio: float) -> float:
    """Return the compression ratio, the evicted fraction of the KV pairs, in [0, 1]."""
    return fraction(ratio, "ratio")


def check_at_most(value: int, limit: int, what: str, limit_name: str) -> int:
    """Return `value`, which may not exceed `limit`; the names appear in the error message."""
    if value > limit:
        raise InputError(
            f"{what} is {shown(value)}, {limit_name} is {limit}: pass {what} no greater than that"
        )
    return value


def booleans(values: ArrayLike, length: int, what: str) -> NDArray[np.bool_]:
    """Return `values` as a new bool array ``[length]``; `what` names it in the error message."""
    try:
        array = np.asarray(values)
        fits = array.shape == (length,) and (length == 0 or array.dtype == np.bool_)
    except (TypeError, ValueError, RuntimeError):  # ragged nesting, or no array in CPU memory
        fits = False
    if not fits:
        raise InputError(f"{what}: pass {length} booleans, one per filled slot")
    return array.astype(np.bool_)


def counted(number: int, what: str) -> str:
    """Return a number of things in words: ``1 request``, ``2,000 requests``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def shown(value: object) -> str:
    """Return the value's text on one line, cut short, for an error message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _integer(value: SupportsIndex, what: str, least: int) -> int:
    if not isinstance(value, bool | np.bool_):
        try:
            number = index(value)
        except TypeError:
            pass
        else:
            if number >= least:
                return number
    raise InputError(f"{what} is {shown(value)}: pass a whole number, at least {least}")


def _real(value: float) -> float:
    """Return the value as a float, NaN for what is not a real number (and so fails every range)."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an int beyond every float
        return math.nan
