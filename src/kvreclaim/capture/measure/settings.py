"""What a measurement is made of, and the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.layout import BLOCK_TABLES, BlockLayout, KVGeometry
from kvreclaim.validate import check_block_size, fraction, positive, positive_int

POLICIES = (
    "streaming-llm",
    "snapkv",
    "adakv:snapkv",
    "chunkkv:chunk_length=16:snapkv",
    "h2o",
    "pyramidkv",
    "observed-attention",
    "tova",
    "expected-attention",
    "keydiff",
    "knorm",
    "random",
)
RATIOS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
BLOCK_SIZES = (16, 8, 32, 64)
REQUEST_TOKENS = 128  # the study's: eight blocks of 16


NEEDLE_TASKS = ("single",)


@dataclass(frozen=True)
class Needles:
    """Which needles to hide; each trial is made with the question seen by the policies, and unseen.

    Parameters
    ----------
    trials
        Trials of each task, either way.
    tasks
        Names; see `kvreclaim.capture.quality.needle`.
    context
        Tokens of a prompt.
    ratio
        Compression ratio of every policy, above 0.

    Raises
    ------
    InputError
        If a number is out of range, or there is no task.
    """

    trials: int
    tasks: tuple[str, ...] = NEEDLE_TASKS
    context: int = 1024
    ratio: float = 0.5

    def __post_init__(self) -> None:
        for name in ("trials", "context"):
            object.__setattr__(self, name, positive_int(getattr(self, name), f"needle {name}"))
        object.__setattr__(self, "tasks", tuple(dict.fromkeys(self.tasks)))
        if not self.tasks:
            raise InputError("no needle tasks: pass at least one")
        object.__setattr__(self, "ratio", positive(fraction(self.ratio, "needle ratio"), "needle ratio"))


@dataclass(frozen=True)
class Settings:
    """What to measure; sequences are kept as tuples without repeats.

    Parameters
    ----------
    model
        As `kvreclaim.capture.models.load` takes it.
    policies
        Names of presses; see `kvreclaim.capture.presses`.
    ratios
        Compression ratios, each above 0.
    context
        Tokens of a prompt.
    prompts
        How many prompts.
    next_tokens
        Tokens after a prompt that quality is judged on, at least 2.
    texts
        Text files to cut the prompts out of; none for the help texts that come with CPython.
    block_sizes
        Tokens of a block; the first is that of ``matched.csv`` and the block maps.
    request_tokens
        Tokens of one request, for the requests admitted.
    target_kl
        KL to match, in nats; None for SnapKV's at ratio .5 on the same prompt, where that is measured.
    needles
        Needles to hide in the same texts, as well; None for none.

    Raises
    ------
    InputError
        If a number is out of range, or there is no policy, ratio or block size.
    """

    model: str
    policies: tuple[str, ...] = POLICIES
    ratios: tuple[float, ...] = RATIOS
    context: int = 2048
    prompts: int = 5
    next_tokens: int = 256
    texts: tuple[str, ...] = ()
    block_sizes: tuple[int, ...] = BLOCK_SIZES
    request_tokens: int = REQUEST_TOKENS
    target_kl: float | None = None
    needles: Needles | None = None

    def __post_init__(self) -> None:
        for name in ("policies", "ratios", "block_sizes", "texts"):
            self._set(name, tuple(dict.fromkeys(getattr(self, name))))
        for name in ("policies", "ratios", "block_sizes"):
            if not getattr(self, name):
                raise InputError(f"no {name.replace('_', ' ')}: pass at least one")
        self._set("ratios", tuple(positive(fraction(ratio, "a ratio"), "a ratio") for ratio in self.ratios))
        self._set("block_sizes", tuple(check_block_size(size) for size in self.block_sizes))
        for name in ("context", "prompts", "next_tokens", "request_tokens"):
            self._set(name, positive_int(getattr(self, name), name))
        if self.next_tokens < 2:
            raise InputError("next_tokens is 1: pass at least 2, for a token is judged by the one before")
        if self.target_kl is not None:
            self._set("target_kl", positive(self.target_kl, "target_kl"))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def layouts(block_size: int, geometry: KVGeometry) -> tuple[BlockLayout, ...]:
    """Return the three kinds of block table, with the windows of the model's layers where it has any."""
    groups = geometry.layer_groups() if geometry.windows else ()
    return tuple(BlockLayout(block_size, kind, groups) for kind in BLOCK_TABLES)
