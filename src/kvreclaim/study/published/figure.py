"""A figure that the study prints: what it claims, and where the tidy rows hold it."""

from __future__ import annotations

from dataclasses import dataclass

from kvreclaim.study.published.claims import NOT_REPRODUCED, Claim, Estimate, Verdict, unit_of
from kvreclaim.study.published.sources import Source, Table


@dataclass(frozen=True)
class Figure:
    """A printed figure.

    Parameters
    ----------
    id
        Its name: experiment, policy, quantity.
    quantity
        What is printed; of words, how they are read.
    claim
        The figure as printed, and the rule that judges it.
    source
        Reads the reproduced value.
    oracle
        Reads the closed form; None where there is none.
    """

    id: str
    quantity: str
    claim: Claim
    source: Source
    oracle: Source | None = None


@dataclass(frozen=True)
class Judged:
    """A printed figure beside its reproduction: a row of ``published.csv``, in the unit printed.

    ``reproduced`` is NaN where it was defined in no run, ``std`` None where the value is no mean over runs,
    ``oracle`` where there is no closed form, ``tolerance`` where an inequality has none.
    """

    id: str
    quantity: str
    published: str
    reproduced: float
    std: float | None
    n: int
    oracle: float | None
    tolerance: float | None
    status: str

    @property
    def in_words(self) -> bool:
        """Whether the study prints words and no digits: they are read as an inequality."""
        return not self.published[0].isdigit()


def judge(figure: Figure, table: Table) -> Judged:
    """Read a figure's reproduction off the rows and judge it."""
    unit = unit_of(figure.claim.printed)
    reproduced = _scaled(figure.source(table), unit)
    oracle = None if figure.oracle is None else _scaled(figure.oracle(table), unit)
    # So few runs that the quantity was defined in none of them reproduce nothing.
    verdict = figure.claim.judge(reproduced, oracle) if reproduced.n else Verdict(NOT_REPRODUCED, None)
    return Judged(
        id=figure.id,
        quantity=figure.quantity,
        published=figure.claim.printed,
        reproduced=reproduced.value,
        std=None if reproduced.std != reproduced.std else reproduced.std,
        n=reproduced.n,
        oracle=None if oracle is None else oracle.value,
        tolerance=verdict.tolerance,
        status=verdict.status,
    )


def _scaled(found: Estimate, unit: float) -> Estimate:
    return Estimate(found.value * unit, found.std * unit, found.n, found.spread * unit)
