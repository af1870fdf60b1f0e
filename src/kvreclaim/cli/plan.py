"""``kvreclaim plan``: the traffic that a model on a GPU carries within a latency target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvreclaim.cli import traffic_options as given
from kvreclaim.cli.extras import needs
from kvreclaim.cli.output import MISSING, Json, console, emit_json, plain_table, printable, progress
from kvreclaim.validate import counted

if TYPE_CHECKING:
    from rich.table import Table

    from kvreclaim.serving.plan import Variant

Seconds = Annotated[float, typer.Option(metavar="SECONDS", help="Target, 99th percentile; 0: none.")]

# What `plan` varies itself, or does not compare.
_LEFT_OUT = ("page_blocks", "kv_dtype")
_COMPARED = ("ratio", "copy_event", "copy_token")  # of the methods


@given.of_a_scenario(*_LEFT_OUT, requests=1000)
def plan_command(
    options: dict[str, Any],
    ttft_p99: Seconds = 2.0,
    latency_p99: Seconds = 0.0,
    json: Json = None,
    out: given.Out = None,
) -> None:
    """Say what traffic a GPU carries within a latency target, with the full cache and with each method."""
    with needs("serving"):
        import polars as pl

        from kvreclaim.cli.compiling import said_if_compiling
        from kvreclaim.cli.plan_remarks import remarks
        from kvreclaim.serving.capacity import Target
        from kvreclaim.serving.plan import plan, takes_a_part, variants
        from kvreclaim.serving.tables import as_parameters, nice_interval, write_traffic

        scenario, target = (
            given.scenario_of(options, compares=_COMPARED),
            Target(ttft_p99 or None, latency_p99 or None),
        )
        folder = given.claimed(out, "plan")
        part = takes_a_part(scenario)
        with said_if_compiling(), progress() as bar:
            task = bar.add_task("simulating", total=len(variants(scenario)))
            found = plan(scenario, target, advance=lambda: bar.advance(task))
        rows = [variant.to_dict() for variant in found]
        if folder is not None:
            interval = nice_interval(1.2 * scenario.read().span)
            named = [(variant.title, variant.scenario.run(interval)) for variant in found]
            targets = {"ttft_p99": ttft_p99, "latency_p99": latency_p99}
            write_traffic(folder, "plan", {**as_parameters(scenario), **targets}, named)
            folder.write("capacity.csv", pl.DataFrame(rows, infer_schema_length=None).write_csv())
    emit_json(json, rows)
    screen = console(json)
    screen.print(_table(scenario.read().name, found, ttft_p99, latency_p99))
    for line in remarks(found, target, part):
        screen.print(line)
    if folder is not None:
        screen.print(f"wrote {printable(str(folder.path))}: capacity and traffic, for `kvreclaim page`")


def _table(trace: str, found: list[Variant], ttft: float, latency: float) -> Table:
    scenario = found[0].scenario
    targets = (("TTFT", ttft), ("latency", latency))
    limits = " and ".join(f"{what} p99 within {value:g} s" for what, value in targets if value)
    requests = counted(found[0].at_load.trace.requests, "request")
    table = plain_table(
        f"{printable(scenario.model)} on {scenario.gpus} {scenario.gpu}, {printable(trace)}, {requests}: "
        f"{limits}",
        f"Load: simulated, times the trace's own, a step's time {scenario.timing().source}; binds: at the "
        "next load above it. At once, and GiB that a mean request gives back: of one alone, simulated. Ratio "
        f"of the methods: {scenario.ratio:g}; 8-bit caches have the same bytes and no quality claim.",
    )
    table.add_column("method")
    table.add_column("mode")
    for heading in ("blocks", "at once\nper GPU", "GiB\nback", "load", "req/s\nper GPU"):
        table.add_column(heading, justify="right")
    table.add_column("binds")
    for variant in found:
        row = variant.to_dict()
        refused = row["refused"]
        table.add_row(
            printable(variant.name),
            variant.mode or MISSING,
            f"{row['blocks']:,}",
            f"{row['requests_at_once_per_gpu']:,.1f}",
            f"{row['gib_given_back_per_request']:.3f}",
            "any" if row["outcome"] == "any load" else _number(row["load"]),
            _number(row["requests_per_second_per_gpu"]),
            f"pool: {refused:,} refused" if refused else row["binds_at_capacity"],
        )
    return table


def _number(value: float | None) -> str:
    """Return two digits behind the point, or three that count."""
    if value is None:
        return MISSING
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3g}"
