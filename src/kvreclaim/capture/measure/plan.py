"""What is to be measured, and how the work is divided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvreclaim.capture.matched.fit import SNAPKV_AT_HALF, Reference
from kvreclaim.capture.measure.cells import Cell, sweep_cell
from kvreclaim.capture.measure.effective import attended
from kvreclaim.capture.measure.needles import NeedlePlan
from kvreclaim.capture.measure.settings import Settings
from kvreclaim.capture.presses import make
from kvreclaim.prompts import Prompt

Part = tuple[Prompt, tuple[str, ...]]
"""Some policies on one prompt, all ratios: what is measured on one prefill."""


@dataclass(frozen=True)
class Plan:
    """A measurement.

    Parameters
    ----------
    model
        As `kvreclaim.capture.models.load` takes it.
    policies
        Names of presses; see `kvreclaim.capture.presses`.
    ratios
        Compression ratios.
    prompts
        What the model reads.
    target
        What quality to match: a KL in nats, the policy and ratio that set it, or None for no matching.
    needles
        The trials to attempt after the sweep, or None.
    """

    model: str
    policies: tuple[str, ...]
    ratios: tuple[float, ...]
    prompts: tuple[Prompt, ...]
    target: Reference | float | None
    needles: NeedlePlan | None = None

    def sweep_cells(self, part: Part) -> list[Cell]:
        """Return the cells of some policies on one prompt at all ratios, policy by policy."""
        prompt, policies = part
        return [sweep_cell(prompt.name, policy, ratio) for policy in policies for ratio in self.ratios]

    def parts(self, jobs: int) -> Iterator[Part]:
        """Divide the sweep among so many processes.

        As many prompts as can be dealt out evenly stay whole; of those left over each process gets a share
        of the policies, for the price of one more prefill.
        """
        whole = len(self.prompts) // jobs * jobs
        for place, prompt in enumerate(self.prompts):
            shares = 1 if place < whole else min(jobs, len(self.policies))
            yield from ((prompt, self.policies[share::shares]) for share in range(shares))


def check_policies(policies: Sequence[str], ratios: Sequence[float], context: int) -> None:
    """Check names and ratios before a model is loaded.

    Raises
    ------
    InputError
        If a policy is unknown or can't be recorded offline, or a ratio keeps nothing.
    """
    for ratio in ratios:
        for policy in policies:
            make(attended(policy).press, ratio, context)


def target_of(settings: Settings) -> Reference | float | None:
    """Return what quality to match: the KL given, else SnapKV's at a half where measured, else None."""
    if settings.target_kl is not None:
        return settings.target_kl
    measured = SNAPKV_AT_HALF.policy in settings.policies and SNAPKV_AT_HALF.ratio in settings.ratios
    return SNAPKV_AT_HALF if measured else None
