"""Budgets at matched quality: how much each policy may keep in a runtime, from a measurement of its harm."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.results import ResultsFolder, as_csv
from kvreclaim.runtimes.observation import Scenario
from kvreclaim.runtimes.vllm.options import Options

POLICIES = {
    **{name: name for name in ("streaming-llm", "snapkv", "tova", "h2o", "knorm", "random", "pyramidkv")},
    "adakv:snapkv": "adakv",
}
"""Presses of a measurement, and the policies of vLLM's plugin that keep the same pairs at the same budget."""

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
        The policy at that budget; mode ``free`` where its effective mask was measured, else ``pack``.
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


def matched_budgets(folder: str | PathLike[str], scenario: Scenario) -> list[MatchedBudget]:
    """Return the budget of each policy of a folder that ``kvreclaim measure`` wrote, at matched quality.

    Of a policy that may evict nothing on the median prompt, the budget is the whole prompt.

    Parameters
    ----------
    folder
        Measured on prompts as long as the scenario's and, for effective masks, in its blocks.
    scenario
        The requests and the pool.

    Raises
    ------
    InputError
        If the folder is none of ``measure``, or of other prompts, blocks or policies than the runtime has.
    """
    path = Path(folder)
    try:
        run = json.loads((path / "run.json").read_bytes())
        context = run["parameters"]["context"]
        with (path / "matched.csv").open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if (row["block_tables"], row["remedy"]) == ROWS]
        if run["command"] != "measure":
            raise ValueError("of another command")
        found = [_budget(row, scenario) for row in rows]
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} holds no matched quality: pass a folder that kvreclaim measure wrote"
        ) from error
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
            "policy": one.options.policy,
            "mode": one.options.mode,
            "ratio": one.ratio,
            "budget": one.options.budget,
            "target_kl": one.target_kl,
            "outside": one.outside,
        }
        for one in budgets
    ]
    folder.write(FILE, as_csv(COLUMNS, rows))


def _budget(row: dict[str, Any], scenario: Scenario) -> MatchedBudget:
    press, mode = _press(row["policy"], scenario)
    ratio = float(row["ratio"])
    budget = int(scenario.prompt_tokens * (1 - ratio))  # as a press counts
    return MatchedBudget(
        options=Options(POLICIES[press], budget=budget, mode=mode),
        ratio=ratio,
        target_kl=float(row["target_kl"]),
        outside=int(row["below"]) + int(row["above"]),
    )


def _press(policy: str, scenario: Scenario) -> tuple[str, str]:
    """Return the press and the mode that a measured policy stands for."""
    press, mode = policy, "pack"
    if policy.startswith("effective:"):
        wanted = f"effective:block_size={scenario.block_size}:"
        if not policy.startswith(wanted):
            raise InputError(f"{policy} was measured in other blocks: measure {wanted}PRESS")
        press, mode = policy.removeprefix(wanted), "free"
    if press not in POLICIES:
        raise InputError(f"{press} is no policy of the plugin: measure one of {', '.join(POLICIES)}")
    return press, mode
