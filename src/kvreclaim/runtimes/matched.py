"""Budgets at matched quality: how much each policy may keep in a runtime, from a measurement of its harm."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from os import PathLike
from pathlib import Path, PurePath
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.grammar import parse, written
from kvreclaim.results import ResultsFolder, as_csv
from kvreclaim.runtimes.observation import Scenario
from kvreclaim.runtimes.vllm.kinds import ALIGNED, JOINT, WHOLE, scored_by
from kvreclaim.runtimes.vllm.naming import name_of, options_of
from kvreclaim.runtimes.vllm.options import Options

SCORES = ("last-queries", "snapkv", "tova", "knorm", "rkv", "triattention")
"""Presses of a measurement whose scores the plugin has too, under a policy that takes any."""

POLICIES = (
    *("streaming-llm", "snapkv", "tova", "h2o", "knorm", "rkv", "triattention", "random", "pyramidkv"),
    "adakv:snapkv",
    *(f"{policy}:PRESS" for policy in JOINT),
    "paged-eviction",
)
"""Presses of a measurement that the plugin has, and that keep the same pairs there at the same budget."""

FILE = "budgets.csv"
COLUMNS = ("policy", "mode", "ratio", "budget", "target_kl", "outside")

ROWS = ("shared", "zero_copy")
"""Of a policy's rows, by kind of table and remedy, the one that is read: r* is the same in all."""


@dataclass(frozen=True)
class MatchedBudget:
    """What a measurement lets a policy evict.

    Attributes
    ----------
    options
        The policy at that budget; mode ``free`` where its effective mask was measured or it keeps whole
        blocks, else ``pack``. A budget that ends within a block, of a policy that fills the blocks it keeps,
        is raised to the block's end: block-joint then keeps what was measured, and the rest of one block.
    ratio
        Median of r* over the prompts.
    target_kl
        Median of the KL that is matched, in nats.
    outside
        Prompts whose r* lies outside the sweep: below it, nothing was evicted; above it, the highest ratio
        stands in.
    """

    options: Options
    ratio: float
    target_kl: float
    outside: int

    @property
    def name(self) -> str:
        """The policy's name, as its runs have it."""
        return name_of(self.options)


_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, csv.Error)


def matched_budgets(
    folder: str | PathLike[str], scenario: Scenario, centres: str | None = None
) -> list[MatchedBudget]:
    """Return the budget of each policy of a folder that ``kvreclaim measure`` wrote, at matched quality.

    Of a policy that may evict nothing on the median prompt, the budget is the whole prompt.

    Parameters
    ----------
    folder
        Measured on prompts as long as the scenario's and, for effective masks, in its blocks.
    scenario
        The requests and the pool.
    centres
        For TriAttention's scores, the model's query centres: a file that ``kvreclaim calibrate queries``
        wrote.

    Raises
    ------
    InputError
        If the folder is none of ``measure``, or of other prompts, blocks or policies than the runtime has; or
        if it has TriAttention's scores and there are no centres.
    """
    path = Path(folder)
    try:
        run = json.loads((path / "run.json").read_bytes())
        context = run["parameters"]["context"]
        with (path / "matched.csv").open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if (row["block_tables"], row["remedy"]) == ROWS]
        if run["command"] != "measure":
            raise ValueError("of another command")
        found = [_budget(row, scenario, centres) for row in rows]
        if not found or len({row["policy"] for row in rows}) < len(rows):
            raise ValueError("no row, or two of one policy")
        model = run["parameters"].get("model", scenario.model)
    except InputError:
        raise
    except _DAMAGED as error:
        raise InputError(
            f"{path} holds no matched quality: pass a folder that kvreclaim measure wrote"
        ) from error
    if centres is not None and not any(one.options.centres for one in found):
        raise InputError(f"{path} has none of TriAttention's scores: leave out --centres")
    if PurePath(model).name != PurePath(scenario.model).name:
        raise InputError(f"{path} was measured on {model}: pass --model {model}, or measure {scenario.model}")
    if context != scenario.prompt_tokens:
        raise InputError(
            f"{path} was measured on prompts of {context} tokens: pass --prompt-tokens {context}, or measure "
            f"with --context {scenario.prompt_tokens}"
        )
    return found


def of_the_same_prompts(folder: str | PathLike[str], scenario: Scenario) -> bool:
    """Return whether a folder of ``kvreclaim measure`` was measured on the very prompts of a scenario."""
    asked = json.loads((Path(folder) / "run.json").read_bytes())["parameters"]
    wanted: dict[str, Any] = {
        "model": scenario.model,
        "prompts": scenario.requests,
        "next_tokens": scenario.max_tokens,
        "texts": [],
    }
    return all(asked.get(key) == value for key, value in wanted.items())


def write_budgets(folder: ResultsFolder, budgets: Sequence[MatchedBudget]) -> None:
    """Write ``budgets.csv``: a row per policy and mode, those that may evict nothing among them."""
    rows = [
        {
            "policy": one.name,
            "mode": one.options.mode,
            "ratio": one.ratio,
            "budget": one.options.budget,
            "target_kl": one.target_kl,
            "outside": one.outside,
        }
        for one in budgets
    ]
    folder.write(FILE, as_csv(COLUMNS, rows))


def _budget(row: dict[str, Any], scenario: Scenario, centres: str | None) -> MatchedBudget:
    chosen = _options(row["policy"], scenario)
    if scored_by(chosen["policy"], chosen.get("scores")) == "triattention":
        if centres is None:
            raise InputError(
                f"{row['policy']} wants the model's query centres: pass --centres with the file of kvreclaim "
                "calibrate queries"
            )
        chosen["centres"] = centres
    ratio, target = float(row["ratio"]), float(row["target_kl"])
    if not 0 <= ratio < 1 or not 0 <= target < inf:
        raise ValueError("no ratio, or no KL")
    budget = int(scenario.prompt_tokens * (1 - ratio))  # as a press counts
    if chosen["policy"] in ALIGNED:
        budget = _whole(budget, scenario)
    return MatchedBudget(
        options=Options(budget=budget, **chosen),
        ratio=ratio,
        target_kl=target,
        outside=int(row["below"]) + int(row["above"]),
    )


def _whole(budget: int, scenario: Scenario) -> int:
    """Return the least budget that pays for whole blocks of all that a smaller one keeps."""
    last = (scenario.prompt_tokens - 1) % scenario.block_size + 1
    return min(last - (last - budget) // scenario.block_size * scenario.block_size, scenario.prompt_tokens)


def _options(measured: str, scenario: Scenario) -> dict[str, Any]:
    """Return the options, but for the budget, of the policy that a measured one stands for."""
    press, mode = measured, "pack"
    if measured.startswith("effective:"):
        wanted = f"effective:block_size={scenario.block_size}:"
        if not measured.startswith(wanted):
            raise InputError(f"{measured} was measured in other blocks: measure {wanted}PRESS")
        press, mode = measured.removeprefix(wanted), "free"
    parts = parse(press)
    policy, names = parts[0], ":".join(part.name for part in parts)
    pattern = f"{policy.name}:PRESS" if policy.name in JOINT and len(parts) > 1 else names
    if pattern not in POLICIES or (policy.name in JOINT and parts[1].name not in SCORES):
        raise InputError(f"{press} is no policy of the plugin: measure one of {', '.join(POLICIES)}")
    blocks = policy.name in (*JOINT, "paged-eviction")
    if blocks and policy.parameters.pop("block_size", 16) != scenario.block_size:  # 16: a press's own
        wanted = pattern.replace(policy.name, f"{policy.name}:block_size={scenario.block_size}", 1)
        raise InputError(f"{press} was measured in other blocks: measure {wanted}")
    return {**options_of(written(parts)), "mode": "free" if policy.name in WHOLE else mode}
