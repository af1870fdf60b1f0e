"""The plugin's policies as text, in the grammar of ``kvreclaim measure``: ``block-joint:sinks=8:rkv``.

A policy, its parameters, and for those that take any scores whose scores these are, with their parameters. A
name says all that tells two runs apart but the budget, the mode and the buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.grammar import NamedPress, parse, written
from kvreclaim.runtimes.vllm.kinds import CHOOSING, JOINT, OF_POLICY, SCORERS, scored_by
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.runtimes.vllm.parameters import of_policy, of_scores

_INNER = {**CHOOSING, "adakv": "snapkv"}
"""Policies whose scores are named after them, and those taken where none are."""

NAMES = tuple(
    f"{name}[:SCORES]" if name in CHOOSING else name
    for name in sorted({"streaming-llm", "random", *OF_POLICY, *CHOOSING})
)
"""What `options_of` takes, parameters left out."""

_DEFAULTS = {field.name: field.default for field in fields(Options)}


def options_of(text: str) -> dict[str, Any]:
    """Return what a policy's name says of the plugin's option: ``policy``, ``scores`` and parameters.

    Parameters
    ----------
    text
        One of `NAMES`, with parameters, such as ``snapkv:window_size=32`` or ``block-joint:sinks=8:rkv``.

    Raises
    ------
    InputError
        If the plugin has no such policy, scores or parameter.
    """
    head, *rest = parse(text)
    if head.name not in {name.removesuffix("[:SCORES]") for name in NAMES}:
        raise InputError(f"policy {head.name!r} is not the plugin's: pass one of {', '.join(NAMES)}")
    own = of_policy(head.name)
    if head.name not in _INNER:
        if rest:
            raise InputError(f"{text}: {head.name} takes no other's scores: leave out {rest[0].name}")
        return {"policy": head.name, **_given(text, head, {**own, **of_scores(OF_POLICY.get(head.name))})}
    known = SCORERS if head.name in CHOOSING else (_INNER[head.name],)
    if len(rest) > 1 or any(inner.name not in known for inner in rest):
        raise InputError(f"{text}: {head.name} takes one scorer of {', '.join(known)}: pass one of them")
    found = {"policy": head.name, **_given(text, head, own)}
    if rest and head.name in CHOOSING:
        found["scores"] = rest[0].name
    return found | (_given(text, rest[0], of_scores(rest[0].name)) if rest else {})


def name_of(options: Options) -> str:
    """Return a policy's name: its scores where it takes any, and parameters that are not its own."""
    scores = scored_by(options.policy, options.scores)
    own, takes = of_policy(options.policy), of_scores(scores)
    if options.policy not in _INNER or scores is None:
        return written([NamedPress(options.policy, _changed(options, {**own, **takes}))])
    inner = NamedPress(scores, _changed(options, takes))
    return written([NamedPress(options.policy, _changed(options, own)), inner])


def _given(text: str, press: NamedPress, takes: Mapping[str, str]) -> dict[str, Any]:
    """Return the option's names and values of the parameters given."""
    for key in press.parameters:
        if key not in takes:
            raise InputError(
                f"{text}: {press.name} has no parameter {key} in the plugin: it takes {_listed(tuple(takes))}"
            )
    return {takes[key]: value for key, value in press.parameters.items()}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _changed(options: Options, takes: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters that an option sets to something else than what holds where nothing is said."""
    own = _own(options)
    return {
        key: value
        for key, name in takes.items()
        if (value := getattr(options, name)) not in (_DEFAULTS[name], own.get(name))
    }


def _own(options: Options) -> dict[str, Any]:
    """Return what an option's None stands for: the scores' window and kernel, the policy's own parameters."""
    scorer = options.scorer
    own: dict[str, Any] = {} if scorer is None else {"window": scorer.window, "kernel": scorer.kernel}
    unsaid = replace(options, recent=None, beta=None)
    if options.policy in JOINT:
        found = vars(unsaid.joint())
        return own | {name: found.get(name) for name in ("recent", "beta")}
    return own | {"beta": unsaid.pyramid}
