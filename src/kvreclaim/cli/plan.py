"""``kvreclaim plan``: the traffic that a model on a GPU carries within a latency target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvreclaim.cli import traffic_options as given
from kvreclaim.cli.extras import needs
from kvreclaim.cli.output import MISSING, Json, console, emit_json, plain_table, printable, progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from kvreclaim.serving.plan import Variant

Seconds = Annotated[float, typer.Option(metavar="SECONDS", help="Target, 99th percentile; 0: none.")]

_NOT_OF_SCENARIO = {"ttft_p99", "latency_p99", "json", "out"}
_ADVICE = {
    "pool": "The pool binds: memory given back admits requests.",
    "max_num_seqs": "The pool is not binding, max_num_seqs is: raise --max-num-seqs first.",
    "compute": "The pool is not binding, the GPU's time is: a faster GPU, more of them, or less load.",
    "nothing": "The pool is not binding, nor is anything else: an eviction admits nobody here.",
}


def plan_command(
    trace: given.TracePath,
    model: given.Model = "llama-3.1-8b",
    gpu: given.Gpu = "h100",
    gpu_memory_gib: given.GpuMemoryGib = 0.0,
    gpus: given.Gpus = 1,
    weights_gib: given.WeightsGib = 0.0,
    utilization: given.Utilization = 0.9,
    blocks: given.Blocks = 0,
    block_size: given.BlockSize = 16,
    runtime: given.Runtime = "",
    max_num_seqs: given.MaxNumSeqs = 256,
    max_num_batched_tokens: given.MaxNumBatchedTokens = 2048,
    step_time: given.StepTime = "",
    efficiency: given.Efficiency = 1.0,
    requests: given.Requests = 1000,
    load: given.Load = 1.0,
    rate: given.Rate = 0.0,
    burstiness: given.Burstiness = 1.0,
    seed: given.Seed = 0,
    policy: given.Policy = "none",
    ratio: given.Ratio = 0.5,
    mode: given.Mode = "pack",
    masks: given.Masks = "",
    measured: given.Measured = "",
    copy_event: given.CopyEvent = 0.0,
    copy_token: given.CopyToken = 0.0,
    ttft_p99: Seconds = 2.0,
    latency_p99: Seconds = 0.0,
    json: Json = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write a results folder, for `kvreclaim page`.")
    ] = None,
) -> None:
    """Say what traffic a GPU carries within a latency target, with the full cache and with each method."""
    options = {name: value for name, value in locals().items() if name not in _NOT_OF_SCENARIO}
    with needs("serving"):
        import polars as pl

        from kvreclaim.cli.compiling import say_if_compiling
        from kvreclaim.results import ResultsFolder
        from kvreclaim.serving.plan import Target, plan, variants
        from kvreclaim.serving.scenario import Scenario
        from kvreclaim.serving.tables import as_parameters, nice_interval, write_traffic

        scenario = Scenario.of({**options, "step_time": given.read_step_time(step_time)})
        target = Target(ttft_p99 or None, latency_p99 or None)
        folder = None if out is None else ResultsFolder(out)
        if folder is not None:
            folder.claim("plan")
        scenario.read()
        say_if_compiling()
        with progress() as bar:
            task = bar.add_task("simulating", total=len(variants(scenario)))
            found = plan(scenario, target, advance=lambda: bar.advance(task))
        rows = [variant.to_dict() for variant in found]
        if folder is not None:
            interval = nice_interval(1.2 * scenario.read().span)
            named = [(_name(variant), variant.scenario.run(interval)) for variant in found]
            targets = {"ttft_p99": ttft_p99, "latency_p99": latency_p99}
            write_traffic(folder, "plan", {**as_parameters(scenario), **targets}, named)
            folder.write("capacity.csv", pl.DataFrame(rows, infer_schema_length=None).write_csv())
    emit_json(json, rows)
    screen = console(json)
    screen.print(_table(scenario.read().name, found, ttft_p99, latency_p99))
    for line in _remarks(found):
        screen.print(line)
    if folder is not None:
        screen.print(f"wrote {printable(str(folder.path))}: capacity and traffic, for `kvreclaim page`")


def _name(variant: Variant) -> str:
    return f"{variant.name}, {variant.mode}" if variant.mode else variant.name


def _table(trace: str, found: list[Variant], ttft: float, latency: float) -> Table:
    from kvreclaim.serving.plan import HIGHEST_LOAD

    scenario = found[0].scenario
    targets = (("TTFT", ttft), ("latency", latency))
    limits = " and ".join(f"{what} p99 within {value:g} s" for what, value in targets if value)
    table = plain_table(
        f"{printable(scenario.model)} on {scenario.gpus} {scenario.gpu}, {printable(trace)}: {limits}",
        f"Load: simulated, times the trace's own, a step's time {scenario.timing().source}. At once, and GiB "
        "that a mean request gives back: closed forms. Ratio of the methods: "
        f"{scenario.ratio:g}; 8-bit caches have the same bytes and no quality claim.",
    )
    table.add_column("method")
    table.add_column("mode")
    for heading in ("blocks", "at once\nper GPU", "GiB\nback", "load", "req/s\nper GPU"):
        table.add_column(heading, justify="right")
    table.add_column("binds")
    for variant in found:
        row = variant.to_dict()
        rate, load = row["requests_per_second_per_gpu"], row["load"]
        table.add_row(
            variant.name,
            variant.mode or MISSING,
            f"{row['blocks']:,}",
            f"{row['requests_at_once_per_gpu']:,.1f}",
            f"{row['gib_given_back_per_request']:.3f}",
            f"> {HIGHEST_LOAD:g}" if load is None else f"{load:.2f}",
            MISSING if rate is None else f"{rate:.2f}",
            variant.binds,
        )
    return table


def _remarks(found: list[Variant]) -> Iterator[str]:
    full = found[0]
    yield f"At the trace's own load: {_ADVICE[full.binds]}"
    totals = full.at_load.totals
    if totals.refused:
        first, _ = totals.first_refused[0]
        yield f"{totals.refused:,} requests are longer than the pool and refused, request {first} the first"
    for note in full.at_load.trace.notes:
        yield printable(note)
