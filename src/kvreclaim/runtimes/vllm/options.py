"""The plugin's one option: JSON in the environment variable ``KVRECLAIM_VLLM``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from numbers import Integral, Real
from typing import Any

from kvreclaim import policies
from kvreclaim.errors import InputError
from kvreclaim.policies import Policy
from kvreclaim.runtimes.vllm.kinds import (
    CHOOSING,
    JOINT,
    OF_POLICY,
    SCORERS,
    WINDOWED,
    Scorer,
    scored_by,
)
from kvreclaim.runtimes.vllm.parameters import check_taken
from kvreclaim.runtimes.vllm.together import check_buffer, check_files, check_mode
from kvreclaim.runtimes.vllm.values import check_type, one_of
from kvreclaim.validate import fraction, non_negative_int, positive_int, shown

VARIABLE = "KVRECLAIM_VLLM"
"""The environment variable that holds the option."""

POLICIES = ("none", "streaming-llm", *OF_POLICY, *CHOOSING, "random", "keep-mask")
MODES = ("free", "pack", "mask", "compact")

LONGEST_KERNEL = 1001
"""Of what smooths scores along the sequence."""


@dataclass(frozen=True)
class Options:
    """What is evicted, how, and when.

    Parameters
    ----------
    policy
        One of `POLICIES`; ``none`` keeps everything and only observes.
    budget
        KV pairs kept per layer and head, the mean over them for ``adakv`` and ``pyramidkv``. A prompt of no
        more tokens is left whole. Required, but for ``none`` and ``keep-mask``.
    mode
        ``free``: only whole dead blocks leave the request, nothing is copied, and dead pairs in held blocks
        stay attended. ``pack``: each layer and head packs its survivors into the fewest blocks. ``mask``:
        attention skips dead pairs, and nothing returns. ``compact``: attention skips dead pairs, whole dead
        blocks leave at once, and others as pairs are moved out of them between the engine's steps.
    copy_budget
        ``pack``: the most bytes that one eviction may copy. ``compact``: the most that a step may, over all
        requests. None for no limit.
    latency_budget, copy_cost
        ``compact``: the most seconds that the copies of a step may take, and what copies cost: a file that
        ``kvreclaim calibrate copy --json`` wrote. None for no limit.
    buffer
        Evict again, down to the budget, whenever so many tokens have come since; None evicts once, at the end
        of the prefill.
    sinks, recent
        ``streaming-llm``: tokens kept at the start. The block-coherent policies: tokens at the start and at
        the end that always stay, and with them their blocks; 64 at the end where nothing is said.
    window, kernel
        Queries that look, and the odd length of what smooths along the sequence, of the scores that have
        them; None for the scores' own (`kvreclaim.runtimes.vllm.kinds`).
    recent_share
        ``h2o``: share of the budget that goes to the latest tokens.
    attention_share
        R-KV's scores: what attention counts beside redundancy.
    alpha
        ``adakv``: share of the budget that each head is sure of.
    beta
        ``pyramidkv``: how much less the last layer keeps than the first (20). ``blend``: share of the kept
        blocks that are packed (.25).
    copies
        ``block-swap``: KV pairs that may be copied, as a share of all.
    heads, tokens, top
        The block-coherent policies: how heads, and the tokens of a block, are joined, as
        `kvreclaim.policies.joint.JointPolicy` says.
    scores
        Whose scores ``block-wise`` and the block-coherent policies take; None for SnapKV's and those of the
        last queries.
    seed
        ``random``.
    centres
        TriAttention's scores: the model's query centres, a file that ``kvreclaim calibrate queries`` wrote.
    masks
        ``keep-mask``: a keep-mask file. Its only mask is used for every prompt of its length; of several,
        each is named after its prompt, as `prompt_name` says.
    records
        A folder for the tables of steps and evictions and the counters that Prometheus shows, or None.
    record_masks
        Give asked and effective keep masks with each record, to who listens in the engine's process.

    Raises
    ------
    InputError
        If a value can't be used, or does not belong to the policy or mode.
    """

    policy: str
    budget: int | None = None
    mode: str = "pack"
    copy_budget: int | None = None
    latency_budget: float | None = None
    copy_cost: str | None = None
    buffer: int | None = None
    sinks: int = 4
    recent: int | None = None
    window: int | None = None
    kernel: int | None = None
    recent_share: float = 0.5
    attention_share: float = 0.1
    alpha: float = 0.2
    beta: float | None = None
    copies: float = 0.025
    heads: str = "mean"
    tokens: str = "mean"
    top: int = 2
    scores: str | None = None
    seed: int = 0
    centres: str | None = None
    masks: str | None = None
    records: str | None = None
    record_masks: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            check_type(getattr(self, field.name), str(field.type), field.name)
        one_of(self.policy, POLICIES, "policy")
        one_of(self.mode, MODES, "mode")
        for name in ("sinks", "seed"):
            non_negative_int(getattr(self, name), name)
        for name in ("recent_share", "attention_share", "alpha"):
            fraction(getattr(self, name), name)
        self._check_scores()
        self._check_budget()
        check_mode(self)
        check_buffer(self)
        check_files(self)
        check_taken(self.policy, self.scores, self.changed())

    @property
    def evicts(self) -> bool:
        """Whether anything is evicted at all."""
        return self.policy != "none"

    @property
    def scored_by(self) -> str | None:
        """Whose scores the policy takes; None where it goes by position, at random or by a file."""
        return scored_by(self.policy, self.scores)

    @property
    def scorer(self) -> Scorer | None:
        """Those scores; None where there are none."""
        return None if self.scored_by is None else SCORERS[self.scored_by]

    @property
    def looking(self) -> int:
        """The latest queries that scores come from."""
        own = None if self.scorer is None else self.scorer.window
        return 1 if own is None else self.window or own

    @property
    def smoothing(self) -> int:
        """The length of what smooths scores along the sequence."""
        own = None if self.scorer is None else self.scorer.kernel
        return 1 if own is None else self.kernel or own

    @property
    def pyramid(self) -> float:
        """How much less the last layer of ``pyramidkv`` keeps than the first."""
        return 20 if self.beta is None else self.beta

    def joint(self) -> Policy:
        """Return the block-coherent policy, one of `JOINT`; InputError if a parameter is out of range."""
        given: dict[str, Any] = {name: getattr(self, name) for name in ("heads", "tokens", "top", "sinks")}
        if self.recent is not None:
            given["recent"] = positive_int(self.recent, "recent")  # the last block stays: tokens go on in it
        if self.policy == "blend" and self.beta is not None:
            given["beta"] = self.beta
        if self.policy == "block-swap":
            given["copies"] = self.copies
        return policies.get(self.policy, **given)

    def changed(self) -> dict[str, Any]:
        """Return the policy, and by name all that is not as it is where nothing is said."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }

    def as_json(self) -> str:
        """Return the option as JSON text, as the environment variable takes it."""
        return json.dumps(self.changed(), default=_plain)

    def _check_scores(self) -> None:
        if self.scores is not None:
            one_of(self.scores, tuple(SCORERS), "scores")
            if self.policy not in CHOOSING:
                raise InputError(f"policy {self.policy} has scores of its own, or none: leave out scores")
        if self.window is not None:
            positive_int(self.window, "window")
        if self.kernel is not None and (
            positive_int(self.kernel, "kernel") % 2 == 0 or self.kernel > LONGEST_KERNEL
        ):
            raise InputError(f"kernel is {self.kernel}: pass an odd length of at most {LONGEST_KERNEL}")
        if self.policy == "pyramidkv" and self.pyramid < 1:
            raise InputError(f"beta is {self.beta!r}: pass a number of at least 1")
        if self.policy in JOINT:
            self.joint()

    def _check_budget(self) -> None:
        if self.policy in ("none", "keep-mask"):
            if self.budget is not None:
                raise InputError(f"policy {self.policy} has no budget: leave it out")
            return
        if self.budget is None:
            raise InputError(f"policy {self.policy} needs a budget: pass the KV pairs to keep per head")
        positive_int(self.budget, "budget")
        if self.policy == "streaming-llm" and self.budget <= self.sinks:
            raise InputError(f"budget {self.budget} and {self.sinks} sinks: pass a budget above the sinks")
        keeps_window = self.scorer is not None and self.scorer.kind in WINDOWED
        if keeps_window and self.budget <= self.looking:
            raise InputError(f"budget {self.budget} and a window of {self.looking}: pass a budget above it")


def parse(text: str) -> Options:
    """Return the option of a JSON text.

    Raises
    ------
    InputError
        If it is no JSON object, gives a name twice, names something unknown or something that the policy does
        not take, or a value can't be used.
    """
    try:
        given = json.loads(text, object_pairs_hook=_each_once)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{VARIABLE} is not JSON ({error})") from error
    if not isinstance(given, dict):
        raise InputError(f"{VARIABLE}: pass a JSON object, such as " + '{"policy": "snapkv", "budget": 128}')
    return from_mapping(given)


def from_mapping(given: Mapping[str, Any]) -> Options:
    """Return the option of named values; errors as `parse`."""
    names = [field.name for field in fields(Options)]
    if unknown := sorted(set(given) - set(names)):
        raise InputError(f"{VARIABLE} has no {', '.join(map(repr, unknown))}: pass {', '.join(names)}")
    if "policy" not in given:
        raise InputError(f"{VARIABLE} names no policy: pass one of {', '.join(POLICIES)}")
    options = Options(**given)
    check_taken(options.policy, options.scores, [name for name, value in given.items() if value is not None])
    return options


def _plain(value: object) -> int | float:
    """Return a number of another kind, such as NumPy's, as Python's own: JSON has no other."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{value!r} is no number")


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of its pairs; JSON itself takes the last of equal names."""
    given = dict(pairs)
    if len(given) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{VARIABLE} gives {shown(twice)} twice: give it once")
    return given


def from_environment() -> Options | None:
    """Return the option that the environment sets, None where it sets none; errors as `parse`."""
    text = os.environ.get(VARIABLE, "").strip()
    return parse(text) if text else None


def prompt_name(token_ids: list[int] | tuple[int, ...]) -> str:
    """Return the name of a prompt's mask in a file of several: a digest of its token ids."""
    return sha256(",".join(map(str, token_ids)).encode()).hexdigest()[:16]
