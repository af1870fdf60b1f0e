"""``kvreclaim advise``: which policy, on a model, a text and a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvreclaim.advise.settings import CONTINUATION, RETRIEVAL, AdviceSettings
from kvreclaim.cli.extras import needs
from kvreclaim.cli.measure import Context, Jobs, NextTokens, Prompts, Texts
from kvreclaim.cli.model_options import Model
from kvreclaim.cli.output import Json, console, emit_json, percent, plain_table, printable, progress
from kvreclaim.errors import InputError
from kvreclaim.layout import runtime as runtime_preset
from kvreclaim.validate import check_block_size, counted, positive_int

if TYPE_CHECKING:
    from rich.table import Table

    from kvreclaim.advise.rows import Advice, AdviceRow

Runtime = Annotated[
    str, typer.Option(metavar="NAME", help="Whose block table is to free: a name of kvreclaim runtimes.")
]
BlockSize = Annotated[
    int | None,
    typer.Option(metavar="TOKENS", help="Size of a block.", show_default="the runtime's"),
]
Ratio = Annotated[
    float | None,
    typer.Option(metavar="FRACTION", help="Share of the KV memory to get back.", show_default="0.5"),
]
Blocks = Annotated[
    int | None, typer.Option(metavar="N", help="Blocks of a prompt to get back, instead of a ratio.")
]
Matters = Annotated[
    str,
    typer.Option(
        metavar="WHAT",
        help="continuation, retrieval, or module:function, a loss of your own (docs/remedy.md).",
    ),
]
CopyBudget = Annotated[
    float, typer.Option(metavar="FRACTION", help="KV pairs that may be copied, as a share of all.")
]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar="PRESS", help="One more candidate; may be repeated."),
]
Trials = Annotated[int, typer.Option(metavar="N", help="Needles to hide, where retrieval matters.")]
PoolGib = Annotated[float, typer.Option(metavar="GIB", help="KV memory of a GPU.")]
Out = Annotated[
    str, typer.Option(metavar="DIR", help="The results folder; an advice that was interrupted goes on in it.")
]


_LOSSES = {
    CONTINUATION: "log KL over the next tokens",
    RETRIEVAL: "share of needles missed, of those that the full cache finds",
}


def advise_command(
    model: Model,
    runtime: Runtime = "vllm",
    block_size: BlockSize = None,
    ratio: Ratio = None,
    blocks: Blocks = None,
    matters: Matters = AdviceSettings.matters,
    copy_budget: CopyBudget = AdviceSettings.copy_budget,
    policies: Policies = None,
    context: Context = AdviceSettings.context,
    prompts: Prompts = AdviceSettings.prompts,
    next_tokens: NextTokens = AdviceSettings.next_tokens,
    texts: Texts = None,
    trials: Trials = AdviceSettings.trials,
    pool_gib: PoolGib = AdviceSettings.pool_gib,
    jobs: Jobs = 1,
    out: Out = "advice",
    json: Json = None,
) -> None:
    """Say which policy to use: candidates measured on your model and text, in your runtime's block table."""
    preset = runtime_preset(runtime)
    size = preset.block_size if block_size is None else block_size
    settings = AdviceSettings(
        model=model,
        ratio=_ratio(ratio, blocks, context, size),
        block_size=size,
        block_tables=preset.block_tables,
        matters=matters,
        copy_budget=copy_budget,
        policies=tuple(policies or ()),
        context=context,
        prompts=prompts,
        next_tokens=next_tokens,
        texts=tuple(texts or ()),
        trials=trials,
        pool_gib=pool_gib,
    )
    with needs("models"):
        found = _advise(settings, out, jobs)
    emit_json(json, found.to_dict())
    screen = console(json)
    screen.print(advice_table(found, settings), "")
    screen.print(printable(found.choice.reason))
    screen.print("")
    screen.print(f"wrote {out}: advice.csv, advice.json, masks and run.json")


def advice_table(found: Advice, settings: AdviceSettings) -> Table:
    """Return the candidates as a table, those of the least loss first."""
    table = plain_table(
        f"At ratio {settings.ratio:g}, blocks of {settings.block_size}, {settings.block_tables} tables",
        f"{counted(settings.prompts, 'prompt')} of {settings.context:,} tokens, measured: means. Loss: "
        f"{printable(_LOSSES.get(settings.matters, settings.matters))}. KL by SnapKV's: geometric mean. "
        "* no other that evicts loses less, frees more and copies less. Admitted: requests as long as a "
        f"prompt in {settings.pool_gib:g} GiB. fp8, int8: the whole cache in eight bits."
        f"{_exceeding(found, settings)}",
    )
    table.add_column("", no_wrap=True)
    table.add_column("candidate", overflow="fold")
    for head in ("loss", "KL by\nSnapKV's", "needle", "freed", "copied", "ad-\nmitted"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in found.rows:
        table.add_row(
            (">" if row.recommended else " ") + ("*" if row.pareto else " "),
            printable(row.candidate),
            f"{row.loss:.3g}",
            f"{row.kl_ratio_to_snapkv:.2f}",
            percent(row.needle, 0),
            f"{row.physical_reclaim:.3f}",
            _copied(row, settings.copy_budget),
            f"{row.admitted:,}",
        )
    return table


def _copied(row: AdviceRow, copy_budget: float) -> str:
    return f">{percent(copy_budget)}" if row.exceeds(copy_budget) else percent(row.moved_fraction)


def _exceeding(found: Advice, settings: AdviceSettings) -> str:
    budget = settings.copy_budget
    if not any(row.exceeds(budget) for row in found.rows):
        return ""
    return f" >{percent(budget)}: packing would exceed the copy budget, so nothing is copied, and less freed."


def _ratio(ratio: float | None, blocks: int | None, context: int, block_size: int) -> float:
    if ratio is not None and blocks is not None:
        raise InputError("a ratio and a number of blocks to get back: pass one of --ratio and --blocks")
    if blocks is not None:
        size, tokens = check_block_size(block_size), positive_int(context, "context")
        most = (tokens - 1) // size
        if not most:
            raise InputError(
                f"a block of {size} holds all {counted(tokens, 'token')}: pass a smaller --block-size"
            )
        if not 1 <= blocks <= most:
            raise InputError(
                f"--blocks is {blocks}: pass 1 to {most}, of prompts of "
                f"{counted(tokens, 'token')} in blocks of {size}"
            )
        return blocks * size / tokens
    return AdviceSettings.ratio if ratio is None else ratio


def _advise(settings: AdviceSettings, out: str, jobs: int) -> Advice:
    from kvreclaim.advise.run import advise

    with progress() as bar:
        task = bar.add_task("measuring", total=None)
        return advise(
            settings, out, jobs, lambda done, missing: bar.update(task, completed=done, total=missing)
        )
