"""What is asked of an advice: model, runtime, how much to free, what matters, what may be copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.layout import BLOCK_TABLES
from kvreclaim.validate import check_block_size, fraction, positive, positive_int

CONTINUATION, RETRIEVAL = "continuation", "retrieval"
SNAPKV = "snapkv"


@dataclass(frozen=True)
class AdviceSettings:
    """What is asked.

    Parameters
    ----------
    model
        As `kvreclaim.capture.models.load` takes it.
    ratio
        Fraction of the KV memory to get back, and so of the pairs to evict.
    block_size, block_tables
        The runtime's layout.
    matters
        ``continuation``: what the model says next; ``retrieval``: needles, asked for in the prompt; or
        ``module:function``, the user's own evaluation, see `kvreclaim.advise.evaluation`.
    copy_budget
        KV pairs that may be copied, as a share of all.
    policies
        Candidates beside those that are always tried.
    context, prompts, next_tokens, texts
        As `kvreclaim.capture.measure.settings.Settings` has them.
    trials
        Needle trials, where retrieval matters.
    pool_gib
        KV memory of a GPU, for requests admitted.

    Raises
    ------
    InputError
        If a number is out of range.
    """

    model: str
    ratio: float = 0.5
    block_size: int = 16
    block_tables: str = "shared"
    matters: str = CONTINUATION
    copy_budget: float = 0.03
    policies: tuple[str, ...] = ()
    context: int = 2048
    prompts: int = 8
    next_tokens: int = 256
    texts: tuple[str, ...] = ()
    trials: int = 20
    pool_gib: float = 16.0

    def __post_init__(self) -> None:
        self._set("ratio", positive(fraction(self.ratio, "ratio"), "ratio"))
        self._set("block_size", check_block_size(self.block_size))
        if self.block_tables not in BLOCK_TABLES:
            raise InputError(f"block_tables is {self.block_tables!r}: pass one of {', '.join(BLOCK_TABLES)}")
        self._set("copy_budget", fraction(self.copy_budget, "copy_budget"))
        for name in ("context", "prompts", "next_tokens", "trials"):
            self._set(name, positive_int(getattr(self, name), name))
        self._set("pool_gib", positive(self.pool_gib, "pool_gib"))
        if self.matters not in (CONTINUATION, RETRIEVAL) and self.matters.count(":") != 1:
            raise InputError(
                f"matters is {self.matters!r}: pass {CONTINUATION}, {RETRIEVAL} or module:function"
            )

    @property
    def wanted(self) -> float:
        """Fraction of a prompt's blocks to get back: whole blocks of what is evicted."""
        blocks = -(-self.context // self.block_size)
        return int(self.context * self.ratio / self.block_size + 1e-9) / blocks

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def candidates(settings: AdviceSettings) -> tuple[str, ...]:
    """Return the presses to try, SnapKV first: what the others are compared with.

    The remedies decide by the runtime's own tables. Those that copy are tried where copies are allowed.
    """
    layout = "" if settings.block_size == 16 else f":block_size={settings.block_size}"
    layout += "" if settings.block_tables == "shared" else f":block_tables={settings.block_tables}"
    tried = [
        SNAPKV,
        "streaming-llm",
        f"block-joint{layout}:expected-attention",
        f"block-joint{layout}:last-queries",
        f"block-joint:heads=max:tokens=max{layout}:snapkv",
    ]
    if settings.copy_budget > 0:
        tried.append(f"block-swap:copies={settings.copy_budget:g}{layout}:last-queries")
        tried.append(f"blend{layout}:last-queries")
    return tuple(dict.fromkeys([*tried, *settings.policies]))
