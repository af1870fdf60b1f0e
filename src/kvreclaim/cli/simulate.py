"""``kvreclaim simulate``: a trace through a scheduler and a pool."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvreclaim.cli import traffic_options as given
from kvreclaim.cli.extras import needs
from kvreclaim.cli.output import MISSING, Json, console, emit_json, percent, plain_table, printable, wrote
from kvreclaim.validate import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from kvreclaim.serving.outcome import Simulation
    from kvreclaim.serving.scenario import Scenario


@given.of_a_scenario()
def simulate_command(
    options: dict[str, Any],
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between samples over time; 0: about 600 in all.")
    ] = 0.0,
    json: Json = None,
    out: given.Out = None,
) -> None:
    """Say who runs, who waits and for how long when a trace meets a pool of blocks."""
    with needs("serving"):
        from kvreclaim.cli.compiling import said_if_compiling
        from kvreclaim.serving.tables import as_parameters, nice_interval, write_traffic
        from kvreclaim.serving.tables import requests as requests_table
        from kvreclaim.serving.trace import HELD, Trace

        scenario, folder = given.scenario_of(options), given.claimed(out, "simulate")
        span = scenario.read().span
        with said_if_compiling():
            simulation = scenario.run(interval or nice_interval(1.2 * span))
        if folder is not None:
            write_traffic(folder, "simulate", as_parameters(scenario), [("as given", simulation)])
            if isinstance(simulation.trace, Trace):
                table = requests_table(simulation.trace, simulation.each)
                table.write_parquet(folder.place("requests.parquet"))
    emit_json(json, simulation.summary())
    screen = console(json)
    screen.print(_table(scenario, simulation))
    for line in remarks(scenario, simulation):
        screen.print(line)
    if folder is not None:
        what = "tables over time and by request"
        if not simulation.trace.in_memory:
            what = f"tables over time; by request only up to {HELD:,} requests"
        screen.print(wrote(folder.path, what))


def _table(scenario: Scenario, simulation: Simulation) -> Table:
    found = simulation.summary()
    timing = scenario.timing()
    table = plain_table(
        f"{printable(simulation.trace.name)}: {counted(found['requests'], 'request')}, "
        f"{found['blocks']:,} blocks of {simulation.settings.block_size}",
        f"Simulated; a step's time is {timing.source}.",
    )
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in _rows(found):
        table.add_row(name, value)
    return table


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("iterations", "refused", "peak_running", "peak_waiting", "peak_blocks", "preemptions"):
        yield name.replace("_", " "), f"{found[name]:,}"
    if found["evictions"]:
        yield "evictions", f"{found['evictions']:,}"
        yield "blocks freed by them", f"{found['blocks_freed']:,}"
    if found["peak_pages"] is not None:
        yield "peak pages", f"{found['peak_pages']:,}"
    if found["hit_tokens"]:
        yield "prompt tokens found", f"{found['hit_tokens']:,}"
    for name in ("ttft_mean", "ttft_p99", "latency_p50", "latency_p99"):
        yield f"{name.replace('_', ' ')}, s", _seconds(found[name])
    rate = found["output_tokens_per_second"]
    yield "output tokens/s", MISSING if rate is None else f"{rate:,.0f}"
    yield "share of the time busy", percent(found["busy"])
    yield "the pool binds", "yes" if found["pool_binding"] else "no"
    yield "simulated in, s", f"{found['simulate_seconds']:.3f}"


def _seconds(value: float | None) -> str:
    """Return seconds with three digits that count, whole ones in full."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def remarks(scenario: Scenario, simulation: Simulation) -> Iterator[str]:
    """Yield what a reader should know: refusals by name, what binds, what the trace's reader noted."""
    for note in simulation.trace.notes:
        yield f"{printable(simulation.trace.name)}: {note}"
    settings = simulation.settings
    totals = simulation.totals
    for place, tokens in totals.first_refused:
        yield f"request {place} refused: {tokens:,} tokens are more than {settings.blocks:,} blocks hold"
    if totals.refused > len(totals.first_refused):
        yield f"... and {totals.refused - len(totals.first_refused):,} more refused"
    error = simulation.totals.latency.error
    if error:
        yield f"Percentiles are within {error:.2%}: the times of so many requests are counted, not held."
    if totals.refused:
        yield f"The pool binds: it is too small for {counted(totals.refused, 'request')}."
    elif simulation.pool_binding:
        yield "The pool binds: requests waited for blocks, or were preempted."
    else:
        yield "The pool is not binding: no request ever waited for blocks."
        if scenario.evicts:
            yield _without_eviction(scenario)


def _without_eviction(scenario: Scenario) -> str:
    """Return what the eviction is good for where with it the pool does not bind."""
    full = replace(scenario.setup(), eviction=None).run(scenario.read()).summary()
    if not full["pool_binding"]:
        return (
            "Nor is it without the eviction, which costs here and admits nobody; a higher --load or a "
            "smaller pool would bind."
        )
    if full["refused"]:
        return f"Without the eviction it binds: {counted(full['refused'], 'request')} longer than it."
    return (
        f"Without the eviction it binds: {counted(full['preemptions'], 'preemption')}, up to "
        f"{counted(full['peak_waiting'], 'request')} waiting, TTFT p99 {_seconds(full['ttft_p99'])} s."
    )
