"""The choice among measured candidates: the Pareto set, and one recommendation with its uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvreclaim.errors import InputError
from kvreclaim.statistics import Interval, bootstrap_interval, sign_flip_p
from kvreclaim.validate import counted

FEWEST = 6
"""Prompts or trials on which candidates can be told apart: five of one sign happen in one of 16 by chance."""
SURE = 0.05


@dataclass(frozen=True)
class Option:
    """A candidate, measured.

    Parameters
    ----------
    name
        Of the candidate.
    losses
        Quality lost, a number a prompt or trial, the same ones in the same order for all candidates.
    physical_reclaim
        Fraction of the KV memory that the runtime gets back.
    moved_fraction
        Copies that this takes, as a share of all KV pairs.
    evicts
        Whether it evicts; a format in fewer bits does not, and is a baseline.
    """

    name: str
    losses: tuple[float, ...]
    physical_reclaim: float
    moved_fraction: float
    evicts: bool = True

    @property
    def loss(self) -> float:
        """Mean loss."""
        return float(np.mean(self.losses))


@dataclass(frozen=True)
class Comparison:
    """How a candidate does beside the recommended one, over the same prompts.

    Parameters
    ----------
    name
        The candidate.
    difference, low, high
        Mean of its loss less the recommended one's, and the 95 % interval of a paired bootstrap.
    p
        Of the difference, by flipping signs: the bootstrap alone is too sure of a few prompts.
    """

    name: str
    difference: float
    low: float
    high: float
    p: float

    @property
    def told_apart(self) -> bool:
        """Whether the interval leaves 0 out, and the signs are no chance."""
        return (self.low > 0 or self.high < 0) and self.p <= SURE


@dataclass(frozen=True)
class Choice:
    """What is recommended, and why.

    Parameters
    ----------
    recommended
        Name of a candidate; None where none does what is asked.
    reason
        In a sentence.
    comparisons
        The other candidates that do what is asked, and the baselines, beside it.
    """

    recommended: str | None
    reason: str
    comparisons: tuple[Comparison, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain, JSON-ready values."""
        compared = [{**vars(one), "told_apart": one.told_apart} for one in self.comparisons]
        return {"recommended": self.recommended, "reason": self.reason, "comparisons": compared}


def pareto_set(options: Sequence[Option]) -> set[str]:
    """Return the names of those that evict and that no other such beats: loss, reclaim and copies.

    One beats another if it is as good or better in all three and better in one. Formats are baselines: what
    they save comes on top of an eviction.
    """
    evicting = [one for one in options if one.evicts]
    merits = {one.name: np.array([-one.loss, one.physical_reclaim, -one.moved_fraction]) for one in evicting}

    def beaten(name: str) -> bool:
        own = merits[name]
        return any((other >= own).all() and (other > own).any() for other in merits.values())

    return {name for name in merits if not beaten(name)}


def choose(options: Sequence[Option], wanted: float, copy_budget: float, judged: str = "prompt") -> Choice:
    """Recommend one candidate.

    Of those that evict, free what is wanted and copy no more than allowed, the one with the least loss; where
    others can't be told apart from it, the one of them that copies least.

    Parameters
    ----------
    options
        The candidates, with losses of the same prompts.
    wanted
        Physical reclaim to reach at least.
    copy_budget
        Copies allowed, as a share of all KV pairs.
    judged
        What one loss is of.

    Raises
    ------
    InputError
        If candidates have losses of different prompts.
    """
    counts = {len(one.losses) for one in options}
    if len(counts) > 1 or 0 in counts:
        raise InputError("candidates have losses of different prompts: measure all on the same")
    fit = [one for one in options if one.evicts and one.physical_reclaim >= wanted - 1e-9]
    within = [one for one in fit if one.moved_fraction <= copy_budget + 1e-9]
    if not within:
        return Choice(None, _nothing_fits(options, fit, wanted, copy_budget))
    _, close = _closest(within)
    chosen = min(close, key=lambda one: (one.moved_fraction, one.loss))
    others = [one for one in options if one is not chosen and (one in within or not one.evicts)]
    comparisons = tuple(compare(one, chosen) for one in others)
    on = f"on {counted(len(chosen.losses), judged)}"
    return Choice(chosen.name, _reason(chosen, within, comparisons, on), comparisons)


def _closest(within: Sequence[Option]) -> tuple[Option, list[Option]]:
    """Return the one with the least loss, and with it those that can't be told apart from it."""
    best = min(within, key=lambda one: one.loss)
    return best, [one for one in within if one is best or not compare(one, best).told_apart]


def compare(one: Option, other: Option) -> Comparison:
    """Return how much more one loses than another, by a paired bootstrap over prompts and a test of signs."""
    differences = np.subtract(one.losses, other.losses)
    low, high = (
        bootstrap_interval(differences, np.mean) if len(differences) > 1 else Interval(-np.inf, np.inf)
    )
    return Comparison(one.name, float(differences.mean()), low, high, sign_flip_p(differences))


def _reason(chosen: Option, within: Sequence[Option], comparisons: Sequence[Comparison], on: str) -> str:
    best, close = _closest(within)
    frees = f"frees {chosen.physical_reclaim:.3f} with {chosen.moved_fraction:.1%} of the pairs copied"
    rivals = ", ".join(one.name for one in close if one is not chosen)
    if len(close) > 1 and len(chosen.losses) < FEWEST:
        why = f"{on} none dominates: it takes {FEWEST} to tell candidates apart; of those, it copies least"
    elif len(close) > 1 and len({one.losses for one in close}) == 1:
        why = f"none dominates: as much lost {on} by {rivals}"
    elif chosen is not best:
        why = f"not told apart {on} from {best.name}, which loses least, and copies less"
    elif rivals:
        why = f"loses least; {on} none dominates: not told apart from {rivals}"
    elif len(within) == 1:
        why = "no other candidate frees as much within the copy budget: it is the only one that fits"
    else:
        why = f"loses least, told apart from all others {on}"
    formats = {one.name for one in comparisons if one.told_apart and one.high < 0}
    formats -= {one.name for one in close}
    lose, them = ("loses", "it") if len(formats) == 1 else ("lose", "them")
    named = " and ".join(sorted(formats))
    note = f"; {named} {lose} less: where the runtime has {them}, take {them} first"
    return f"{chosen.name} {frees}; {why}{note if formats else ''}"


def _nothing_fits(options: Sequence[Option], fit: Sequence[Option], wanted: float, copies: float) -> str:
    if fit:
        least = min(one.moved_fraction for one in fit)
        return (
            f"what frees {wanted:.3f} copies at least {least:.1%} of the pairs, and {copies:.1%} are allowed"
        )
    most: Mapping[str, float] = {one.name: one.physical_reclaim for one in options if one.evicts}
    name = max(most, key=lambda key: most[key]) if most else "nothing"
    return f"no candidate frees {wanted:.3f}: {name} frees most, {most.get(name, 0.0):.3f}"
