"""Policies: what decides the keep mask from scores and a budget.

To add one, write its file with a frozen dataclass derived from `Policy`, and name it in `_POLICIES`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.policies.base import Policy, budget_at
from kvreclaim.policies.blend import Blend
from kvreclaim.policies.block_joint import BlockJoint
from kvreclaim.policies.block_swap import BlockSwap
from kvreclaim.policies.block_wise import BlockWise
from kvreclaim.policies.h2o import H2O
from kvreclaim.policies.lowest_importance import LowestImportance
from kvreclaim.policies.minimum_loss import MinimumLoss
from kvreclaim.policies.paged_eviction import PagedEviction
from kvreclaim.policies.random_tokens import RandomTokens
from kvreclaim.policies.reclaimability_aware import ReclaimabilityAware
from kvreclaim.policies.snapkv import SnapKV
from kvreclaim.policies.streaming_llm import StreamingLLM
from kvreclaim.policies.token_joint import TokenJoint

__all__ = [
    "H2O",
    "Blend",
    "BlockJoint",
    "BlockSwap",
    "BlockWise",
    "LowestImportance",
    "MinimumLoss",
    "PagedEviction",
    "Policy",
    "RandomTokens",
    "ReclaimabilityAware",
    "SnapKV",
    "StreamingLLM",
    "TokenJoint",
    "budget_at",
    "get",
    "names",
]

_POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        *(RandomTokens, LowestImportance, BlockWise, ReclaimabilityAware, StreamingLLM, H2O, SnapKV),
        *(BlockJoint, TokenJoint, Blend, BlockSwap, PagedEviction, MinimumLoss),
    )
}


def names() -> tuple[str, ...]:
    """Return the names of the policies."""
    return tuple(_POLICIES)


def get(name: str, **configuration: Any) -> Policy:
    """Return a policy by its name.

    Parameters
    ----------
    name
        One of `names()`.
    configuration
        The policy's parameters, such as ``beta=0.4``; those left out keep their defaults.

    Raises
    ------
    InputError
        If the policy or one of its parameters does not exist, or a value is out of range.
    """
    if name not in _POLICIES:
        raise InputError(f"unknown policy {name!r}: pass one of {', '.join(_POLICIES)}")
    parameters = [field.name for field in fields(_POLICIES[name])]  # type: ignore[arg-type]  # each is a dataclass
    unknown = sorted(set(configuration) - set(parameters))
    if unknown:
        takes = f"pass {', '.join(parameters)}" if parameters else "it takes none"
        raise InputError(f"policy {name} has no parameter {', '.join(unknown)}: {takes}")
    return _POLICIES[name](**configuration)
