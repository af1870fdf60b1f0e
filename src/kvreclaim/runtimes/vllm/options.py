"""The plugin's one option: JSON in the environment variable ``KVRECLAIM_VLLM``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.validate import fraction, non_negative_int, positive_int

VARIABLE = "KVRECLAIM_VLLM"
"""The environment variable that holds the option."""

SCORES = ("snapkv", "tova", "h2o", "knorm")
"""Policies whose scores ``block-wise`` can take."""

UNEQUAL = ("adakv", "pyramidkv")
"""Policies whose heads or layers keep different numbers of pairs."""

POLICIES = ("none", "streaming-llm", *SCORES, "block-wise", "random", *UNEQUAL, "keep-mask")
MODES = ("free", "pack", "mask")


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
        attention skips dead pairs, and nothing returns.
    copy_budget
        ``pack`` only: the most bytes that one eviction may copy; None for no limit.
    buffer
        Evict again, down to the budget, whenever so many tokens have come since; None evicts once, at the end
        of the prefill.
    sinks
        ``streaming-llm``: tokens kept at the start.
    window, kernel
        ``snapkv``, ``adakv``, ``pyramidkv``, and ``block-wise`` on SnapKV's scores: queries that look (their
        tokens are kept), and the odd length of the average along the sequence.
    recent_share
        ``h2o``: share of the budget that goes to the latest tokens.
    alpha
        ``adakv``: share of the budget that each head is sure of.
    beta
        ``pyramidkv``: how much less the last layer keeps than the first.
    scores
        ``block-wise``: whose scores are summed, one of `SCORES`.
    seed
        ``random``.
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
    buffer: int | None = None
    sinks: int = 4
    window: int = 64
    kernel: int = 5
    recent_share: float = 0.5
    alpha: float = 0.2
    beta: int = 20
    scores: str = "snapkv"
    seed: int = 0
    masks: str | None = None
    records: str | None = None
    record_masks: bool = False

    def __post_init__(self) -> None:
        _one_of(self.policy, POLICIES, "policy")
        _one_of(self.mode, MODES, "mode")
        _one_of(self.scores, SCORES, "scores")
        for name in ("sinks", "seed"):
            non_negative_int(getattr(self, name), name)
        for name in ("window", "beta"):
            positive_int(getattr(self, name), name)
        fraction(self.recent_share, "recent_share")
        fraction(self.alpha, "alpha")
        if positive_int(self.kernel, "kernel") % 2 == 0:
            raise InputError(f"kernel is {self.kernel}: pass an odd length")
        if not isinstance(self.record_masks, bool):
            raise InputError(f"record_masks is {self.record_masks!r}: pass true or false")
        self._check_budget()
        self._check_mode()
        self._check_files()

    @property
    def evicts(self) -> bool:
        """Whether anything is evicted at all."""
        return self.policy != "none"

    @property
    def needs_window(self) -> bool:
        """Whether the latest ``window`` queries are looked at."""
        return (self.scores if self.policy == "block-wise" else self.policy) in ("snapkv", *UNEQUAL)

    def as_json(self) -> str:
        """Return the option as JSON text, as the environment variable takes it."""
        return json.dumps(asdict(self))

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
        if self.needs_window and self.budget <= self.window:
            raise InputError(f"budget {self.budget} and a window of {self.window}: pass a budget above it")

    def _check_mode(self) -> None:
        if self.copy_budget is not None:
            non_negative_int(self.copy_budget, "copy_budget")
            if self.mode != "pack":
                raise InputError(f"mode {self.mode} copies nothing: leave out copy_budget, or pass mode pack")
            if self.policy in (*UNEQUAL, "keep-mask"):
                raise InputError(f"copy_budget with {self.policy}, whose heads differ: leave one of them out")
        if self.buffer is not None:
            positive_int(self.buffer, "buffer")
            if self.policy in ("none", "keep-mask"):
                raise InputError(f"policy {self.policy} evicts once: leave out buffer")
            if self.policy == "block-wise" and self.mode != "pack":
                raise InputError("block-wise with buffer needs rows without dead pairs: pass mode pack")

    def _check_files(self) -> None:
        if (self.policy == "keep-mask") != (self.masks is not None):
            raise InputError("masks and policy keep-mask go together: pass both, or neither")
        for name in ("masks", "records"):
            if not isinstance(getattr(self, name), str | None):
                raise InputError(f"{name} is {getattr(self, name)!r}: pass a path")
        if self.masks is not None and not Path(self.masks).is_file():
            raise InputError(f"masks {self.masks}: no such file")


def parse(text: str) -> Options:
    """Return the option of a JSON text.

    Raises
    ------
    InputError
        If it is no JSON object, names something unknown, or a value can't be used.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InputError(f"{VARIABLE} is not JSON ({error})") from error
    if not isinstance(given, dict):
        raise InputError(f"{VARIABLE}: pass a JSON object, such as " + '{"policy": "snapkv", "budget": 128}')
    return from_mapping(given)


def from_mapping(given: Mapping[str, Any]) -> Options:
    """Return the option of named values; errors as `parse`."""
    names = [field.name for field in fields(Options)]
    if unknown := sorted(set(given) - set(names)):
        raise InputError(f"{VARIABLE} has no {', '.join(map(str, unknown))}: pass {', '.join(names)}")
    if "policy" not in given:
        raise InputError(f"{VARIABLE} names no policy: pass one of {', '.join(POLICIES)}")
    return Options(**given)


def from_environment() -> Options | None:
    """Return the option that the environment sets, None where it sets none; errors as `parse`."""
    text = os.environ.get(VARIABLE, "").strip()
    return parse(text) if text else None


def prompt_name(token_ids: list[int] | tuple[int, ...]) -> str:
    """Return the name of a prompt's mask in a file of several: a digest of its token ids."""
    from hashlib import sha256

    return sha256(",".join(map(str, token_ids)).encode()).hexdigest()[:16]


def _one_of(value: object, known: tuple[str, ...], what: str) -> None:
    if value not in known:
        raise InputError(f"{what} is {value!r}: pass one of {', '.join(known)}")
