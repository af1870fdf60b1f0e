"""The options that `simulate` and `plan` share, each a field of `serving.scenario.Scenario`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvreclaim.results import ResultsFolder
    from kvreclaim.serving.scenario import Scenario

_TRAFFIC, _MACHINE, _POOL, _EVICTION = "Traffic", "Model and GPU", "Pool and scheduler", "Eviction"


def _option(panel: str, default: object, help: str, metavar: str | None = None) -> Parameter:  # noqa: A002  # typer's
    """Return an option of the default's type; `options` names it."""
    option = typer.Option(help=help, metavar=metavar, rich_help_panel=panel)
    return Parameter(
        "option", Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[type(default), option]
    )


OPTIONS = {
    "blocks": _option(
        _POOL, 0, "The pool as vLLM counts it, null block included; 0: from model and GPU.", "COUNT"
    ),
    "block_size": _option(_POOL, 16, "Tokens of a block.", "TOKENS"),
    "runtime": _option(_POOL, "", "The block size of a runtime of `kvreclaim runtimes`, instead.", "NAME"),
    "max_num_seqs": _option(_POOL, 256, "Most requests at once.", "COUNT"),
    "max_num_batched_tokens": _option(_POOL, 2048, "Token budget of a step.", "TOKENS"),
    "watermark": _option(_POOL, 0.0, "Share of the pool that admissions leave free.", "FRACTION"),
    "share_prefixes": _option(_POOL, False, "Share prefixes, by the trace's hashes."),
    "page_blocks": _option(_POOL, 0, "Blocks of a VMM page, to count pages; 0: none.", "COUNT"),
    "hybrid": _option(_POOL, False, "Groups of layers by the model's windows, each with its table."),
    "model": _option(_MACHINE, "llama-3.1-8b", "A known model, or a config.json.", "NAME|FILE"),
    "gpu": _option(_MACHINE, "h100", "A known GPU.", "NAME"),
    "gpu_memory_gib": _option(_MACHINE, 0.0, "Memory of one GPU; 0: the known one's.", "GIB"),
    "gpus": _option(_MACHINE, 1, "GPUs that share the model.", "COUNT"),
    "weights_gib": _option(_MACHINE, 0.0, "Weights; 0: the model's in 16 bits.", "GIB"),
    "utilization": _option(_MACHINE, 0.9, "Share of a GPU's memory to use.", "FRACTION"),
    "kv_dtype": _option(_MACHINE, "auto", "auto, fp8 or int8.", "NAME"),
    "step_time": _option(
        _MACHINE,
        "",
        "Seconds: base,decode,kv_token,prefill_token, or the JSON of `calibrate step`; else a roofline.",
        "NUMBERS|FILE",
    ),
    "efficiency": _option(_MACHINE, 1.0, "Share of the roofline that is reached.", "FRACTION"),
    "requests": _option(_TRAFFIC, 0, "Only the first so many requests; 0: all.", "COUNT"),
    "load": _option(_TRAFFIC, 1.0, "So many times as fast.", "TIMES"),
    "rate": _option(_TRAFFIC, 0.0, "Made-up arrivals, so many a second; 0: the trace's own.", "PER SECOND"),
    "burstiness": _option(_TRAFFIC, 1.0, "Of made-up arrivals: 1 is Poisson, less is burstier.", "SHAPE"),
    "seed": _option(_TRAFFIC, 0, "Of made-up arrivals."),
    "policy": _option(
        _EVICTION,
        "none",
        "At the end of prefill: none, streaming-llm, scattered, block-wise or per-head.",
        "NAME",
    ),
    "ratio": _option(_EVICTION, 0.5, "Share of the input that is evicted.", "FRACTION"),
    "mode": _option(_EVICTION, "pack", "mask, free, pack or reuse.", "NAME"),
    "masks": _option(_EVICTION, "", "What recorded keep masks free, instead.", "FILE"),
    "measured": _option(_EVICTION, "", "What `measure` found of --policy and --ratio, instead.", "DIR"),
    "evict_while_decoding": _option(_EVICTION, "never", "never, rkv, full-buffer or keep-prompt.", "RULE"),
    "budget": _option(_EVICTION, 0, "Slots that an eviction while decoding leaves.", "TOKENS"),
    "buffer": _option(_EVICTION, 0, "Slots that fill up before the next one.", "TOKENS"),
    "copy_event": _option(_EVICTION, 0.0, "Seconds that a compaction adds.", "SECONDS"),
    "copy_token": _option(_EVICTION, 0.0, "Seconds for each token that it moves.", "SECONDS"),
}
_TRACE = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A trace of Azure, Mooncake, BurstGPT, vidur or vLLM, or a table of arrival,prompt,output.",
    ),
]
Out = Annotated[str | None, typer.Option(metavar="DIR", help="Write a results folder, for `kvreclaim page`.")]

_Command = Callable[..., None]


def of_a_scenario(*left_out: str, **defaults: object) -> Callable[[_Command], _Command]:
    """Give a command a trace and `OPTIONS`; it gets their values by name, as its first argument.

    Parameters
    ----------
    left_out
        Options that the command does not have.
    defaults
        Its own defaults.
    """
    shared = [Parameter("trace", Parameter.KEYWORD_ONLY, annotation=_TRACE)]
    for name, option in OPTIONS.items():
        if name not in left_out:
            shared.append(option.replace(name=name, default=defaults.get(name, option.default)))

    def decorated(command: _Command) -> _Command:
        own = list(signature(command, eval_str=True).parameters.values())[1:]

        @wraps(command)
        def taking(**given: Any) -> None:
            values = {option.name: given.pop(option.name) for option in shared}
            command(values, **given)

        parameters = [*shared, *(option.replace(kind=Parameter.KEYWORD_ONLY) for option in own)]
        # What typer reads; `wraps` has copied the command's.
        vars(taking)["__signature__"] = Signature(parameters)
        taking.__annotations__ = {option.name: option.annotation for option in parameters}
        return taking

    return decorated


# Options that do nothing unless one of some others is given too.
_EVICTING = ("policy", "masks", "measured", "evict_while_decoding")
_NEEDED = {
    "budget": ("evict_while_decoding",),
    "buffer": ("evict_while_decoding",),
    "ratio": ("policy",),
    "mode": _EVICTING,
    "copy_event": _EVICTING,
    "copy_token": _EVICTING,
    "burstiness": ("rate",),
    "seed": ("rate",),
}
# Options that another one replaces.
_REPLACED = {
    "block_size": ("runtime",),
    "efficiency": ("step_time",),
    "policy": ("masks",),
    "ratio": ("masks",),
    "measured": ("masks",),
}


def scenario_of(values: dict[str, Any], *, compares: tuple[str, ...] = ()) -> Scenario:
    """Return the scenario of some options.

    Parameters
    ----------
    values
        By name.
    compares
        Options that do something by themselves in this command.

    Raises
    ------
    InputError
        If a value can't be, or an option would do nothing.
    """
    from kvreclaim.serving.scenario import Scenario
    from kvreclaim.serving.steptime import read_step_time

    _refuse_idle(values, compares)
    made = Scenario.of({**values, "step_time": read_step_time(values["step_time"])})
    made.check()
    return made


def _refuse_idle(values: dict[str, Any], compares: tuple[str, ...]) -> None:
    from kvreclaim.errors import InputError

    given = {name for name, value in values.items() if name in OPTIONS and value != OPTIONS[name].default}
    for name in sorted(given - set(compares)):
        if not given & set(_NEEDED.get(name, (name,))):
            needed = " or ".join(map(_flag, _NEEDED[name]))
            raise InputError(f"{_flag(name)} does nothing without {needed}: pass one, or drop it")
    for name in sorted(given - set(compares)):
        for other in given & set(_REPLACED.get(name, ())):
            raise InputError(f"{_flag(other)} replaces {_flag(name)}: pass one of them")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def claimed(out: str | None, command: str) -> ResultsFolder | None:
    """Return the results folder of a command, if one is wanted; `InputError` where it holds another's."""
    from kvreclaim.results import ResultsFolder

    if out is None:
        return None
    folder = ResultsFolder(out)
    folder.claim(command)
    return folder
