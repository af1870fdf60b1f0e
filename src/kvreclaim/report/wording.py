"""Numbers in words: every value shown carries its spread, its count and its kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None) -> str:
    """Return a number in words: ``1,646.9``, ``22.65``, ``0.4700``, ``1.53 × 10⁻⁵``; NaN is undefined."""
    if value is None or math.isnan(value):
        return "undefined"
    if 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    return _digits(value, 0 if value == round(value) else _decimals(value))


def _decimals(value: float) -> int:
    """Return the decimals that give a number about four digits in all."""
    size = abs(value)
    return 1 if size >= 100 else 2 if size >= 1 else 4


def _digits(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}".replace("-", "−")


def percent(value: float) -> str:
    """Return a share as a percentage with two significant digits: ``0.0015 %``, ``47 %``, ``100 %``."""
    share = 100 * value
    if share == 0:
        return "0 %"
    digits = max(0, 1 - math.floor(math.log10(abs(share))))
    return f"{share:.{digits}f} %"


def percent_with_spread(mean: float, std: float | None) -> str:
    """Return shares as ``47.0 ± 2.2 %``, with two digits of the spread; the mean alone without one."""
    if not std:
        return percent(mean)
    decimals = max(0, 1 - math.floor(math.log10(100 * std)))
    return f"{_digits(100 * mean, decimals)} ± {_digits(100 * std, decimals)} %"


def mebibytes(value: float) -> str:
    """Return bytes in MiB, such as ``205.9 MiB``."""
    return f"{value / 2**20:,.1f} MiB"


def with_spread(mean: float | None, std: float | None) -> str:
    """Return ``mean ± std`` with equal decimals; the mean alone where nothing varies (`std` is None)."""
    if mean is None or math.isnan(mean) or std is None or math.isnan(std):
        return number(mean)
    if std < 1e-4:
        return f"{number(mean)} ± {number(std)}"
    decimals = _decimals(mean)
    return f"{_digits(mean, decimals)} ± {_digits(std, decimals)}"


def fixed(mean: float, std: float | None, digits: int = 3) -> str:
    """Return ``mean ± std`` for a column of a table; the mean alone where nothing varies (`std` is None).

    Parameters
    ----------
    mean, std
        The number and its spread.
    digits
        Decimals; more where a mean that is not 0 would read as 0.
    """
    if mean != 0:
        digits = max(digits, -math.floor(math.log10(abs(mean))))
    return _digits(mean, digits) if std is None else f"{_digits(mean, digits)} ± {_digits(std, digits)}"


def counted(count: int, noun: str) -> str:
    """Return ``1 prompt`` or ``5 prompts``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in words: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def evidence(kind: str, n: int | None) -> str:
    """Return the kind of a number and, but for a closed form, its count: ``simulated, n = 30``."""
    return kind if kind.startswith("closed form") or n is None else f"{kind}, n = {n:,}"


@dataclass(frozen=True)
class Quantity:
    """One number of a table: mean, population standard deviation, count and kind."""

    mean: float
    std: float
    n: int
    kind: str

    @property
    def text(self) -> str:
        """``0.4700 ± 0.0218``, or the value alone where it is a closed form."""
        return with_spread(self.mean, None if self.kind.startswith("closed form") else self.std)

    @property
    def percent(self) -> str:
        """``47.0 ± 2.2 %``, or ``0.0015 %`` where it is a closed form."""
        return percent_with_spread(self.mean, None if self.kind.startswith("closed form") else self.std)

    @property
    def evidence(self) -> str:
        """Kind and count."""
        return evidence(self.kind, self.n)
