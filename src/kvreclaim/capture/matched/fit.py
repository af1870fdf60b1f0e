"""Matched quality: how far each policy may compress before it does as much harm as another.

The yardstick is the KL to the full model, prompt by prompt: prompts differ in it far more than policies do. A
policy's KL is measured over a sweep of ratios. It should rise with the ratio and does so but for noise, so a
nondecreasing curve is fitted to its logarithm, straight between the sweep's ratios; r* is where the curve
crosses the target. Outside the sweep nothing is extrapolated: r* is then a bound, and is said to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from kvreclaim.errors import InputError
from kvreclaim.statistics import isotonic
from kvreclaim.validate import fraction, positive

INSIDE, BELOW, ABOVE = "inside", "below", "above"

LEAST_KL = 1e-9
"""A KL below this, in nats, counts as this: float32 logits resolve no less, and its logarithm must exist."""


@dataclass(frozen=True)
class Sweep:
    """The KL of one policy on one prompt over several ratios.

    Parameters
    ----------
    prompt
        Label of the prompt.
    policy
        Name of the policy.
    ratios
        Compression ratios asked for, each in (0, 1], no two equal.
    kls
        KL to the full model at each ratio, in nats.

    Raises
    ------
    InputError
        If there is no ratio, one is out of range or repeats, or a KL is missing or not finite.
    """

    prompt: str
    policy: str
    ratios: tuple[float, ...]
    kls: tuple[float, ...]

    def __post_init__(self) -> None:
        label = f"the sweep of {self.policy} on {self.prompt}"
        for ratio in self.ratios:
            positive(fraction(ratio, f"a ratio of {label}"), f"a ratio of {label}")
        if not self.ratios or len(set(self.ratios)) != len(self.ratios):
            raise InputError(f"{label} has ratios {self.ratios}: pass at least one, each once")
        if len(self.kls) != len(self.ratios) or not all(isfinite(kl) for kl in self.kls):
            raise InputError(f"{label} has {len(self.ratios)} ratios: pass one finite KL for each")


@dataclass(frozen=True)
class Reference:
    """The policy and ratio whose KL, on the same prompt, is the target of the others."""

    policy: str = "snapkv"
    ratio: float = 0.5


SNAPKV_AT_HALF = Reference()


@dataclass(frozen=True)
class Match:
    """How far a policy may compress one prompt.

    Parameters
    ----------
    prompt, policy
        What was swept.
    target_kl
        KL not to exceed, in nats.
    ratio
        r*, the highest ratio that meets the target.
    reached
        ``inside``: the sweep reaches the target, and r* is where. ``above``: even the highest ratio of the
        sweep does less harm; r* is that ratio, the true one may be higher. ``below``: even the lowest does
        more; r* is 0, the true one lies between 0 and the lowest.
    """

    prompt: str
    policy: str
    target_kl: float
    ratio: float
    reached: str


def match(sweep: Sweep, target_kl: float) -> Match:
    """Return the highest ratio at which the fitted curve does not exceed the target.

    Raises
    ------
    InputError
        If the target is not a finite number greater than 0.
    """
    target = np.log(max(positive(target_kl, "target_kl"), LEAST_KL))
    order = np.argsort(sweep.ratios)
    ratios = np.array(sweep.ratios)[order]
    curve = isotonic(np.log(np.maximum(np.array(sweep.kls)[order], LEAST_KL)))
    last = int(np.searchsorted(curve, target, side="right")) - 1  # of the ratios that meet the target
    if last < 0:
        ratio, reached = 0.0, BELOW
    elif last == len(curve) - 1:
        ratio, reached = ratios[-1], INSIDE if curve[-1] == target else ABOVE
    else:
        share = (target - curve[last]) / (curve[last + 1] - curve[last])
        ratio, reached = ratios[last] + share * (ratios[last + 1] - ratios[last]), INSIDE
    return Match(sweep.prompt, sweep.policy, float(target_kl), float(ratio), reached)


def match_all(sweeps: Sequence[Sweep], target: Reference | float = SNAPKV_AT_HALF) -> list[Match]:
    """Match every sweep to its prompt's target.

    Parameters
    ----------
    sweeps
        One for each prompt and policy.
    target
        A KL in nats, the same for all; or the `Reference`, whose KL on the sweep's own prompt is its target,
        and which matches itself at its own ratio whatever the fit makes of its noise.

    Raises
    ------
    InputError
        If a prompt's reference was not swept at its ratio, or a target is not greater than 0.
    """
    if not isinstance(target, Reference):
        return [match(sweep, target) for sweep in sweeps]
    targets = {
        sweep.prompt: max(_kl_at(sweep, target.ratio), LEAST_KL)
        for sweep in sweeps
        if sweep.policy == target.policy and target.ratio in sweep.ratios
    }
    matches = []
    for sweep in sweeps:
        kl = targets.get(sweep.prompt)
        if kl is None:
            raise InputError(
                f"{target.policy} was not measured at ratio {target.ratio:g} on {sweep.prompt}: add that to "
                "the sweep, or pass the target KL as a number"
            )
        if sweep.policy == target.policy:
            matches.append(Match(sweep.prompt, sweep.policy, kl, target.ratio, INSIDE))
        else:
            matches.append(match(sweep, kl))
    return matches


def _kl_at(sweep: Sweep, ratio: float) -> float:
    return dict(zip(sweep.ratios, sweep.kls, strict=True))[ratio]
