"""What a printed figure claims, and the rule by which a reproduction is judged.

``exact``: deterministic, and equal as printed. ``within``: no further from the printed value than half its
last digit and three standard errors of the difference of two means. ``compatible``: the printed value lies
within three standard errors of the exact law, but is not its rounding. Else ``not reproduced``. Words become
inequalities, and are ``within`` where these hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from kvreclaim.study.settings import PUBLISHED_SEEDS

EXACT = "exact"
WITHIN = "within"
COMPATIBLE = "compatible"
NOT_REPRODUCED = "not reproduced"

STANDARD_ERRORS = 3.0


@dataclass(frozen=True)
class Estimate:
    """A reproduced or exact value.

    ``std`` is the deviation between runs as it is shown, ``spread`` the deviation that the standard error is
    taken from: usually the same, but that of the law where a handful of events leaves no usable sample.
    """

    value: float
    std: float
    n: int
    spread: float


@dataclass(frozen=True)
class Verdict:
    """Status and tolerance, the latter None where an inequality has no distance to allow."""

    status: str
    tolerance: float | None


class Claim(Protocol):
    """A printed figure or word; estimates come in the unit that it is printed in."""

    @property
    def printed(self) -> str:
        """The figure as printed."""

    def judge(self, reproduced: Estimate, oracle: Estimate | None) -> Verdict:
        """Judge a reproduction."""


@dataclass(frozen=True)
class Exact:
    """Digits of a deterministic quantity; ``value`` says what is meant where words are printed."""

    printed: str
    value: float | None = None

    def judge(self, reproduced: Estimate, _oracle: Estimate | None) -> Verdict:
        """Compare as printed."""
        value = number(self.printed) if self.value is None else self.value
        half = half_digit(self.printed) if self.value is None else 0.0
        return _verdict(abs(reproduced.value - value) <= half, EXACT, half)


@dataclass(frozen=True)
class Sampled:
    """Digits of a mean over runs."""

    printed: str

    def judge(self, reproduced: Estimate, _oracle: Estimate | None) -> Verdict:
        """Allow for rounding, and for both means being samples."""
        error = reproduced.spread * math.sqrt(1.0 / PUBLISHED_SEEDS + 1.0 / reproduced.n)
        tolerance = half_digit(self.printed) + STANDARD_ERRORS * error
        return _verdict(abs(reproduced.value - number(self.printed)) <= tolerance, WITHIN, tolerance)


@dataclass(frozen=True)
class HeavyTailed:
    """Digits of a mean of heavy-tailed values, held to the exact law: two noisy means prove little."""

    printed: str

    def judge(self, reproduced: Estimate, oracle: Estimate | None) -> Verdict:
        """Judge the printed value by the law, and the reproduction as well."""
        law = _required(oracle, self.printed)
        tolerance = STANDARD_ERRORS * law.spread / math.sqrt(PUBLISHED_SEEDS)
        off = abs(number(self.printed) - law.value)
        if off > tolerance or not _obeys(reproduced, law):
            return Verdict(NOT_REPRODUCED, tolerance)
        return Verdict(WITHIN if off <= half_digit(self.printed) else COMPATIBLE, tolerance)


@dataclass(frozen=True)
class HeavyTailedAbove:
    """Words such as "thousands" on a mean of heavy-tailed values: the law lies above ``limit``."""

    printed: str
    limit: float

    def judge(self, reproduced: Estimate, oracle: Estimate | None) -> Verdict:
        """Compare the law with the limit, and the reproduction with the law."""
        law = _required(oracle, self.printed)
        return _verdict(law.value > self.limit and _obeys(reproduced, law), WITHIN, None)


@dataclass(frozen=True)
class Near:
    """Words such as "near .47": within ``by`` of ``target``."""

    printed: str
    target: float
    by: float

    def judge(self, reproduced: Estimate, _oracle: Estimate | None) -> Verdict:
        """Compare with the target."""
        return _verdict(abs(reproduced.value - self.target) <= self.by, WITHIN, self.by)


@dataclass(frozen=True)
class Above:
    """Words such as "thousands": more than ``limit``."""

    printed: str
    limit: float

    def judge(self, reproduced: Estimate, _oracle: Estimate | None) -> Verdict:
        """Compare with the limit."""
        return _verdict(reproduced.value > self.limit, WITHIN, None)


@dataclass(frozen=True)
class Below:
    """Words such as "almost nothing": less than ``limit``."""

    printed: str
    limit: float

    def judge(self, reproduced: Estimate, _oracle: Estimate | None) -> Verdict:
        """Compare with the limit."""
        return _verdict(reproduced.value < self.limit, WITHIN, None)


def number(printed: str) -> float:
    """Return the value of printed digits, in the unit that they are printed in."""
    return float(_digits(printed))


def half_digit(printed: str) -> float:
    """Return half a unit of the last printed digit."""
    return 0.5 * 10.0 ** -len(_digits(printed).partition(".")[2])


def unit_of(printed: str) -> float:
    """Return the factor from a fraction to the printed unit: 100 for per cent."""
    return 100.0 if printed.endswith("%") else 1.0


def _required(oracle: Estimate | None, printed: str) -> Estimate:
    if oracle is None:
        raise ValueError(f"{printed}: a heavy-tailed figure needs its law")
    return oracle


def _obeys(reproduced: Estimate, law: Estimate) -> bool:
    """Tell whether a mean of runs lies within three standard errors of its law."""
    return abs(reproduced.value - law.value) <= STANDARD_ERRORS * law.spread / math.sqrt(reproduced.n)


def _digits(printed: str) -> str:
    return printed.removesuffix("%").replace(",", "").strip()


def _verdict(holds: bool, status: str, tolerance: float | None) -> Verdict:
    return Verdict(status if holds else NOT_REPRODUCED, tolerance)
