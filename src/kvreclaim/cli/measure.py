"""``kvreclaim measure``: policies on a real model, what they free and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvreclaim.capture.measure.settings import BLOCK_SIZES, NEEDLE_TASKS, POLICIES, RATIOS, Needles, Settings
from kvreclaim.cli.extras import needs
from kvreclaim.cli.measured_needles import needle_tables
from kvreclaim.cli.measured_tables import matched_table, ratio_table
from kvreclaim.cli.model_options import Model, repeated
from kvreclaim.cli.output import Json, console, emit_json, progress, wrote

if TYPE_CHECKING:
    from kvreclaim.capture.measure.run import Measurement

NO_TARGET = "no matched quality: measure snapkv at ratio 0.5 as well, or pass --target-kl"

Policies = Annotated[
    list[str] | None,
    repeated("--policy", "PRESS", "A press, such as snapkv or adakv:snapkv.", " ".join(POLICIES)),
]
Ratios = Annotated[
    list[float] | None,
    repeated("--ratio", "FRACTION", "Fraction of the KV pairs to evict.", " ".join(map(str, RATIOS))),
]
Context = Annotated[int, typer.Option(metavar="TOKENS", help="Length of a prompt.")]
Prompts = Annotated[int, typer.Option(metavar="N", help="How many prompts.")]
NextTokens = Annotated[
    int, typer.Option(metavar="TOKENS", help="What follows each prompt, and quality is judged on.")
]
Texts = Annotated[
    list[str] | None,
    repeated("--text", "FILE", "Text to cut the prompts out of.", "the help that comes with Python"),
]
BlockSizes = Annotated[
    list[int] | None,
    repeated(
        "--block-size",
        "TOKENS",
        "Size of a block. The first is that of the tables printed.",
        " ".join(map(str, BLOCK_SIZES)),
    ),
]
RequestTokens = Annotated[
    int, typer.Option(metavar="TOKENS", help="Size of a request, for the requests admitted.")
]
TargetKL = Annotated[
    float | None,
    typer.Option(
        metavar="NATS", help="KL to match.", show_default="SnapKV's at ratio 0.5, on the same prompt"
    ),
]
NeedleTrials = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="Needle trials of each task, with the question seen by the policies and as many unseen.",
    ),
]
NeedleTasks = Annotated[
    list[str] | None,
    repeated(
        "--needle-task",
        "single|multi-key|multi-value",
        "What a needle trial asks for.",
        " ".join(NEEDLE_TASKS),
    ),
]
NeedleContext = Annotated[int, typer.Option(metavar="TOKENS", help="Length of a needle trial's prompt.")]
NeedleRatio = Annotated[
    float, typer.Option(metavar="FRACTION", help="Fraction of the KV pairs to evict in a needle trial.")
]
Jobs = Annotated[int, typer.Option(metavar="N", help="Processes; the results do not depend on it.")]
Out = Annotated[
    str, typer.Option(metavar="DIR", help="The results folder; a run that was interrupted goes on in it.")
]


def measure_command(
    model: Model,
    policies: Policies = None,
    ratios: Ratios = None,
    context: Context = Settings.context,
    prompts: Prompts = Settings.prompts,
    next_tokens: NextTokens = Settings.next_tokens,
    texts: Texts = None,
    block_sizes: BlockSizes = None,
    request_tokens: RequestTokens = Settings.request_tokens,
    target_kl: TargetKL = None,
    needle_trials: NeedleTrials = 0,
    needle_tasks: NeedleTasks = None,
    needle_context: NeedleContext = Needles.context,
    needle_ratio: NeedleRatio = Needles.ratio,
    jobs: Jobs = 1,
    out: Out = "measured",
    json: Json = None,
) -> None:
    """Measure policies on a real model: what each keeps, what that frees, and what it costs in quality."""
    tasks = tuple(needle_tasks or NEEDLE_TASKS)
    needles = Needles(needle_trials, tasks, needle_context, needle_ratio) if needle_trials else None
    settings = Settings(
        model=model,
        policies=tuple(policies or POLICIES),
        ratios=tuple(ratios or RATIOS),
        context=context,
        prompts=prompts,
        next_tokens=next_tokens,
        texts=tuple(texts or ()),
        block_sizes=tuple(block_sizes or BLOCK_SIZES),
        request_tokens=request_tokens,
        target_kl=target_kl,
        needles=needles,
    )
    with needs("models"):
        found = _measure(settings, out, jobs)
    emit_json(json, found.to_dict())
    screen = console(json)
    screen.print(ratio_table(found.measured, settings), "")
    screen.print(matched_table(found, settings) if found.matched else NO_TARGET)
    for table in needle_tables(found.needles):
        screen.print("", table)
    screen.print("")
    screen.print(wrote(out, "masks, tables and run.json"))


def _measure(settings: Settings, out: str, jobs: int) -> Measurement:
    from kvreclaim.capture.measure.run import measure

    with progress() as bar:
        task = bar.add_task("measuring", total=None)
        return measure(
            settings, out, jobs, lambda done, missing: bar.update(task, completed=done, total=missing)
        )
