"""The options that `simulate`, `plan` and others share, each a field of `serving.scenario.Scenario`."""

from __future__ import annotations

from typing import Annotated

import typer

_TRAFFIC, _MACHINE, _POOL, _EVICTION = "Traffic", "Model and GPU", "Pool and scheduler", "Eviction"


def _option(panel: str, help: str, metavar: str | None = None) -> typer.models.OptionInfo:  # noqa: A002  # typer's name
    found: typer.models.OptionInfo = typer.Option(help=help, metavar=metavar, rich_help_panel=panel)
    return found


TracePath = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A trace of Azure, Mooncake, BurstGPT, vidur or vLLM, or a table of arrival,prompt,output.",
    ),
]
Requests = Annotated[int, _option(_TRAFFIC, "Only the first so many requests; 0: all.", "COUNT")]
Load = Annotated[float, _option(_TRAFFIC, "So many times as fast.", "TIMES")]
Rate = Annotated[
    float, _option(_TRAFFIC, "Made-up arrivals, so many a second; 0: the trace's own.", "PER SECOND")
]
Burstiness = Annotated[
    float, _option(_TRAFFIC, "Of made-up arrivals: 1 is Poisson, less is burstier.", "SHAPE")
]
Seed = Annotated[int, _option(_TRAFFIC, "Of made-up arrivals.")]

Model = Annotated[str, _option(_MACHINE, "A known model, or a config.json.", "NAME|FILE")]
Gpu = Annotated[str, _option(_MACHINE, "A known GPU.", "NAME")]
GpuMemoryGib = Annotated[float, _option(_MACHINE, "Memory of one GPU; 0: the known one's.", "GIB")]
Gpus = Annotated[int, _option(_MACHINE, "GPUs that share the model.", "COUNT")]
WeightsGib = Annotated[float, _option(_MACHINE, "Weights; 0: the model's in 16 bits.", "GIB")]
Utilization = Annotated[float, _option(_MACHINE, "Share of a GPU's memory to use.", "FRACTION")]
KvDtype = Annotated[str, _option(_MACHINE, "auto, fp8 or int8.", "NAME")]
StepTime = Annotated[
    str,
    _option(
        _MACHINE,
        "Seconds: base,decode,kv_token,prefill_token, or the JSON of `calibrate step`; else a roofline.",
        "NUMBERS|FILE",
    ),
]
Efficiency = Annotated[float, _option(_MACHINE, "Share of the roofline that is reached.", "FRACTION")]

Blocks = Annotated[
    int, _option(_POOL, "The pool as vLLM counts it, null block included; 0: from model and GPU.", "COUNT")
]
BlockSize = Annotated[int, _option(_POOL, "Tokens of a block.", "TOKENS")]
Runtime = Annotated[
    str, _option(_POOL, "The block size of a runtime of `kvreclaim runtimes`, instead.", "NAME")
]
MaxNumSeqs = Annotated[int, _option(_POOL, "Most requests at once.", "COUNT")]
MaxNumBatchedTokens = Annotated[int, _option(_POOL, "Token budget of a step.", "TOKENS")]
Watermark = Annotated[float, _option(_POOL, "Share of the pool that admissions leave free.", "FRACTION")]
SharePrefixes = Annotated[bool, _option(_POOL, "Share prefixes, by the trace's hashes.")]
PageBlocks = Annotated[int, _option(_POOL, "Blocks of a VMM page, to count pages; 0: none.", "COUNT")]
Hybrid = Annotated[bool, _option(_POOL, "Groups of layers by the model's windows, each with its table.")]

Policy = Annotated[
    str,
    _option(
        _EVICTION, "At the end of prefill: none, streaming-llm, scattered, block-wise or per-head.", "NAME"
    ),
]
Ratio = Annotated[float, _option(_EVICTION, "Share of the input that is evicted.", "FRACTION")]
Mode = Annotated[str, _option(_EVICTION, "mask, free, pack or reuse.", "NAME")]
Masks = Annotated[str, _option(_EVICTION, "What recorded keep masks free, instead.", "FILE")]
Measured = Annotated[str, _option(_EVICTION, "What `measure` found of --policy and --ratio, instead.", "DIR")]
WhileDecoding = Annotated[str, _option(_EVICTION, "never, rkv, full-buffer or keep-prompt.", "RULE")]
Budget = Annotated[int, _option(_EVICTION, "Slots that an eviction while decoding leaves.", "TOKENS")]
Buffer = Annotated[int, _option(_EVICTION, "Slots that fill up before the next one.", "TOKENS")]
CopyEvent = Annotated[float, _option(_EVICTION, "Seconds that a compaction adds.", "SECONDS")]
CopyToken = Annotated[float, _option(_EVICTION, "Seconds for each token that it moves.", "SECONDS")]


def read_step_time(text: str) -> tuple[float, ...]:
    """Return the four constants that a text gives, or the JSON file of ``calibrate step`` that it names.

    Raises
    ------
    InputError
        If it is neither.
    """
    import json
    from pathlib import Path

    from kvreclaim.errors import InputError

    if not text:
        return ()
    try:
        if Path(text).is_file():
            found = json.loads(Path(text).read_bytes())["constants"]
            names = ("base", "decode", "kv_token", "prefill_token")
            return tuple(float(found[name]["value"]) for name in names)
        return tuple(float(part) for part in text.split(","))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"--step-time {text!r}: pass base,decode,kv_token,prefill_token in seconds, or the JSON of "
            "`kvreclaim calibrate step`"
        ) from error
