"""``kvreclaim calibrate step``: the constants of a step's time, from a recorded run of vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvreclaim.cli.extras import needs
from kvreclaim.cli.output import Json, console, emit_json, plain_table, printable, progress

if TYPE_CHECKING:
    from rich.table import Table

    from kvreclaim.serving.calibrate import Calibration
    from kvreclaim.serving.runs import Run


def register_step(calibrate: typer.Typer) -> None:
    """Add the command to ``kvreclaim calibrate``."""
    calibrate.command("step")(step_command)


def step_command(
    from_run: Annotated[
        str,
        typer.Option(
            metavar="PREFIX",
            help="A recorded run: PREFIX.requests.jsonl, PREFIX.meta.json and PREFIX.timeseries.csv.",
        ),
    ],
    fit_fraction: Annotated[
        float,
        typer.Option(
            metavar="FRACTION", help="Share of the requests to fit, the first; the rest judge the fit."
        ),
    ] = 0.5,
    json: Json = None,
) -> None:
    """Fit what a step costs to a run's first requests, and judge it by simulating the others."""
    with needs("serving"):
        from kvreclaim.cli.compiling import said_if_compiling
        from kvreclaim.serving.calibrate import calibrate_step, stages
        from kvreclaim.serving.runs import load_run

        run = load_run(from_run)
        with said_if_compiling(), progress() as bar:
            task = bar.add_task("fitting", total=stages())
            fit = calibrate_step(run, fit_fraction, advance=lambda: bar.advance(task))
    emit_json(json, as_object(run, fit))
    screen = console(json)
    if not run.bound:
        screen.print(f"{printable(run.name)}: its meta names no pool size; taken as unbound")
    screen.print(_constants(run, fit), "", _judged(fit))


def as_object(run: Run, fit: Calibration) -> dict[str, Any]:
    """Return the fit as `docs/json.md` describes it."""
    return {
        "run": run.name,
        "requests": fit.fitted + fit.judged,
        "fitted": fit.fitted,
        "judged": fit.judged,
        "blocks": run.settings.blocks if run.bound else None,
        "constants": {
            constant.name: {
                "value": constant.value,
                "low": constant.low,
                "high": constant.high,
                "identifiable": constant.identifiable,
            }
            for constant in fit.constants
        },
        "fit_error": fit.error,
        **{name: {"real": found.real, "simulated": found.simulated} for name, found in fit.figures.items()},
        "running_mae": fit.running_mae,
    }


def _constants(run: Run, fit: Calibration) -> Table:
    table = plain_table(
        f"A step of {printable(run.name)}, fitted to {fit.fitted} of {fit.fitted + fit.judged} requests",
        "Low to high: 95 % profile interval, errors taken as independent. –: no end within ten times.",
    )
    table.add_column("per")
    for heading in ("µs", "low", "high"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for constant in fit.constants:
        ends = ("–" if end is None else f"{end * 1e6:,.4g}" for end in (constant.low, constant.high))
        told = "" if constant.identifiable else "not identifiable"
        table.add_row(constant.name.replace("_", " "), f"{constant.value * 1e6:,.4g}", *ends, told)
    return table


def _judged(fit: Calibration) -> Table:
    table = plain_table(
        f"The other {fit.judged} requests, simulated",
        f"Running requests, mean absolute error: {fit.running_mae:.2f}.",
    )
    table.add_column("figure")
    for heading in ("real", "simulated", "difference"):
        table.add_column(heading, justify="right")
    for name, found in fit.figures.items():
        off = f"{found.simulated / found.real - 1:+.1%}" if found.real else "–"
        table.add_row(name.replace("_", " "), f"{found.real:,.4g}", f"{found.simulated:,.4g}", off)
    return table
