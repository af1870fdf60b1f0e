"""Which of the plugin's options each policy takes, and each kind of scores; others are refused by name.

A mapping goes from the names that presses have for parameters to the option's names for the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm.kinds import CHOOSING, WHOLE, scored_by

_TOKEN_JOINT = ("heads", "sinks", "recent")  # it goes by single tokens, and joins none of them to blocks
_JOINT = ("heads", "tokens", "top", "sinks", "recent")
_BY_POLICY: Mapping[str, Mapping[str, str]] = {
    "streaming-llm": {"sinks": "sinks"},
    "h2o": {"recent_share": "recent_share"},
    "adakv": {"alpha_safeguard": "alpha"},
    "pyramidkv": {"beta": "beta"},
    "random": {"seed": "seed"},
    "token-joint": {name: name for name in _TOKEN_JOINT},
    "block-joint": {name: name for name in _JOINT},
    "blend": {name: name for name in (*_JOINT, "beta")},
    "block-swap": {name: name for name in (*_JOINT, "copies")},
}

_WINDOW = {"window_size": "window", "kernel_size": "kernel"}
_BY_SCORER: Mapping[str, Mapping[str, str]] = {
    "snapkv": _WINDOW,
    "last-queries": _WINDOW,
    "rkv": {**_WINDOW, "attention_share": "attention_share"},
    "triattention": {"recent": "window"},
}

_COPYING = ("copy_budget", "latency_budget", "copy_cost")


def of_policy(policy: str) -> Mapping[str, str]:
    """Return a policy's own parameters, those of its scores left out."""
    return _BY_POLICY.get(policy, {})


def of_scores(scores: str | None) -> Mapping[str, str]:
    """Return the parameters of some scores; none of None."""
    return {} if scores is None else _BY_SCORER.get(scores, {})


def taken(policy: str, scores: str | None = None) -> tuple[str, ...]:
    """Return the names of the options that a policy takes, where an option names ``scores`` or None."""
    if policy == "none":
        return ("policy", "records")
    scorer = scored_by(policy, scores)
    names = ["policy", *(("masks",) if policy == "keep-mask" else ("budget", "buffer")), "mode"]
    names += () if policy in WHOLE else _COPYING
    names += of_policy(policy).values()
    names += ("scores",) if policy in CHOOSING else ()
    names += of_scores(scorer).values()
    names += ("centres",) if scorer == "triattention" else ()
    return (*names, "records", "record_masks")


def check_taken(policy: str, scores: str | None, given: Collection[str]) -> None:
    """Raise InputError if a policy, with those scores, does not take an option that is given."""
    takes = taken(policy, scores)
    if unused := [name for name in given if name not in takes]:
        whose = f" with the scores of {scored_by(policy, scores)}" if policy in CHOOSING else ""
        raise InputError(
            f"policy {policy}{whose} does not take {', '.join(unused)}: leave {_it(unused)} out, "
            f"it takes {', '.join(takes)}"
        )


def _it(names: Collection[str]) -> str:
    return "it" if len(names) == 1 else "them"
