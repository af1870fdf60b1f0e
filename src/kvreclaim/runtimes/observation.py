"""A scenario for a real runtime, what was observed of it, and the folder that both are written to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.prompts import TOPICS, Prompt, cut
from kvreclaim.results import ResultsFolder, as_csv
from kvreclaim.runtimes.vllm.records import EVICTION_COLUMNS
from kvreclaim.scheduling import SchedulerSettings
from kvreclaim.texts import topics
from kvreclaim.validate import positive_int

FIGURES = ("peak_running", "steps", "blocks_freed", "preemptions", "free_blocks_end")
"""What is both observed and predicted."""

STEP_COLUMNS = ("free_blocks", "scheduled", "running", "waiting", "preemptions")
EVICTION_TABLE = (
    "run",
    *EVICTION_COLUMNS,
    *(f"predicted_{column}" for column in ("tokens", "held", "blocks_freed")),
)
"""Columns of ``evictions.csv``: `kvreclaim.runtimes.vllm.records.EvictionRecord`'s, and as predicted."""

MASKS = ("asked", "effective")
"""What a policy keeps, and what attention sees: the two differ where dead pairs stay in held blocks."""

Row = dict[str, Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Scenario:
    """Requests of one length, all there at once, and a pool too small for them.

    Parameters
    ----------
    model
        A model's folder, or an id on the Hugging Face Hub, or a name for what lies in `directory`.
    pool_blocks
        Usable blocks; a null block comes on top.
    block_size
        B in tokens.
    requests, prompt_tokens, max_tokens
        How many; tokens of each prompt, and those that each generates.
    max_num_seqs, max_num_batched_tokens
        Most requests, and most tokens, of one step.
    directory
        The model's folder, where `model` is only its name.

    Raises
    ------
    InputError
        If a number is not whole or below 1, or the pool can't hold one request.
    """

    model: str
    pool_blocks: int = 40
    block_size: int = 32
    requests: int = 8
    prompt_tokens: int = 520
    max_tokens: int = 64
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 1024
    directory: str | None = None

    def __post_init__(self) -> None:
        for number in fields(self)[1:-1]:
            positive_int(getattr(self, number.name), number.name)
        needed = self.settings.blocks_for(self.request_tokens)
        if needed > self.pool_blocks:
            raise InputError(
                f"a request of {self.request_tokens} tokens needs {needed} blocks, the pool has "
                f"{self.pool_blocks}: pass a larger pool or shorter requests"
            )

    @property
    def path(self) -> str:
        """Where a runtime finds the model."""
        return self.model if self.directory is None else self.directory

    @property
    def request_tokens(self) -> int:
        """Tokens of a finished request."""
        return self.prompt_tokens + self.max_tokens

    @property
    def settings(self) -> SchedulerSettings:
        """The pool and the limits, as the scheduler takes them."""
        return SchedulerSettings(
            self.pool_blocks, self.block_size, self.max_num_seqs, self.max_num_batched_tokens
        )

    def prompts(
        self, encode: Callable[[str], Sequence[int]], start: tuple[int, ...] = ()
    ) -> tuple[Prompt, ...]:
        """Return the prompts: those that ``kvreclaim measure`` cuts, of so many and so long ones.

        They come out of the help that comes with Python; what follows them is ``max_tokens`` long.

        Parameters
        ----------
        encode
            The tokenizer, without special tokens.
        start
            What every prompt begins with, as `kvreclaim.prompts.start_of` returns it.

        Raises
        ------
        InputError
            If that text is too short for them.
        """
        ids = {TOPICS: list(encode(topics()))}
        return cut(ids, start, self.requests, self.prompt_tokens, self.max_tokens)


@dataclass(frozen=True)
class Spread:
    """The median of some numbers, the least and the most of them, and how many they are."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one number."""
        return cls(median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Observation:
    """One run of a scenario.

    Attributes
    ----------
    runtime
        ``vllm`` or ``openvino``.
    policy, mode, budget, buffer
        What was evicted, by a name that says its scores and parameters, and how; ``none`` and None for the
        full cache.
    observed, predicted
        `FIGURES` by name; None what the runtime does not show, and for what is not predicted at all.
    unequal
        In what the run did not do as predicted: figures, and ``blocks_freed_by_request``, ``evictions``,
        ``free_blocks_by_step``, ``queues_by_step``; None without a prediction.
    moved_bytes
        Bytes that evictions copied; None what the runtime does not show.
    seconds
        Wall time of the run.
    steps, evictions
        Rows of their tables; steps with the predicted numbers beside.
    ratio, target_kl, outside
        Where the budget is one of matched quality: the share that may be evicted, the KL that is matched, and
        the prompts on which that share lies outside what was measured.
    masks
        By the names of `MASKS`, the keep mask ``[layers, kv_heads, tokens]`` of each request at the end of
        its prefill; empty where the runtime shows none.
    kl
        By the same names: KL of the model that has only those pairs to the full one, over the ``max_tokens``
        tokens that follow the prompt in its text, in nats, over the requests. None where it was not measured.
    """

    runtime: str
    policy: str
    mode: str | None
    budget: int | None
    buffer: int | None
    observed: Mapping[str, int | None]
    predicted: Mapping[str, int] | None
    unequal: tuple[str, ...] | None
    moved_bytes: int | None
    seconds: float
    steps: tuple[Row, ...]
    evictions: tuple[Row, ...] = ()
    ratio: float | None = None
    target_kl: float | None = None
    outside: int | None = None
    masks: Mapping[str, Sequence[Mask]] = field(default_factory=dict, repr=False, compare=False)
    kl: Mapping[str, Spread] | None = None

    def to_dict(self, scenario: Scenario) -> Row:
        """Return the run as ``observe --json`` gives it (docs/json.md)."""
        return {
            "runtime": self.runtime,
            "model": scenario.model,
            "policy": self.policy,
            "mode": self.mode,
            "budget": self.budget,
            "buffer": self.buffer,
            "ratio": self.ratio,
            "target_kl": self.target_kl,
            "outside": self.outside,
            "block_size": scenario.block_size,
            "pool_blocks": scenario.pool_blocks,
            "requests": scenario.requests,
            "prompt_tokens": scenario.prompt_tokens,
            "max_tokens": scenario.max_tokens,
            "predicted": self.predicted,
            "observed": self.observed,
            "unequal": self.unequal,
            "moved_bytes": self.moved_bytes,
            "kl": None if self.kl is None else {name: asdict(spread) for name, spread in self.kl.items()},
            "seconds": self.seconds,
        }


RUN_COLUMNS = (
    *("run", "runtime", "model", "policy", "mode", "budget", "buffer", "ratio", "target_kl", "outside"),
    *("block_size", "pool_blocks"),
    *("requests", "prompt_tokens", "max_tokens"),
    *(f"{kind}_{figure}" for figure in FIGURES for kind in ("observed", "predicted")),
    *("unequal", "moved_bytes"),
    *(f"kl_{name}{end}" for name in MASKS for end in ("", "_low", "_high", "_count")),
    "seconds",
)


def write(folder: ResultsFolder, scenario: Scenario, observations: Sequence[Observation]) -> None:
    """Write ``runs.csv``, ``steps.csv`` and ``evictions.csv``: a row per run, per step and per eviction.

    Runs are numbered from 0; the rows of steps and evictions name theirs under ``run``.
    """
    runs = [_run_row(number, scenario, seen) for number, seen in enumerate(observations)]
    folder.write("runs.csv", as_csv(RUN_COLUMNS, runs))
    predicted = [f"predicted_{column}" for column in STEP_COLUMNS]
    steps = [{"run": number, **row} for number, seen in enumerate(observations) for row in seen.steps]
    folder.write("steps.csv", as_csv(("run", "step", *STEP_COLUMNS, *predicted), steps))
    evictions = [{"run": number, **row} for number, seen in enumerate(observations) for row in seen.evictions]
    folder.write("evictions.csv", as_csv(EVICTION_TABLE, evictions))


def _run_row(number: int, scenario: Scenario, seen: Observation) -> Row:
    row = {"run": number, **seen.to_dict(scenario)}
    observed, predicted = row.pop("observed"), row.pop("predicted") or {}
    row["unequal"] = None if seen.unequal is None else " ".join(seen.unequal) or "nothing"
    for figure in FIGURES:
        row[f"observed_{figure}"] = observed[figure]
        row[f"predicted_{figure}"] = predicted.get(figure)
    for name, spread in (row.pop("kl") or {}).items():
        row |= {
            f"kl_{name}{end}": spread[key]
            for end, key in (("", "median"), ("_low", "low"), ("_high", "high"), ("_count", "count"))
        }
    return row
