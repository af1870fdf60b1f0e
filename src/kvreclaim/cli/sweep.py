"""``kvreclaim sweep``: a grid of simulations, in threads or on a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvreclaim.cli.extras import needs
from kvreclaim.cli.output import Json, console, emit_json, printable, progress
from kvreclaim.errors import InputError

if TYPE_CHECKING:
    from kvreclaim.serving.sweep import Run


def sweep_command(
    file: Annotated[
        str, typer.Argument(metavar="FILE.toml", help=r"Tables \[fixed], of values, and \[grid], of lists.")
    ],
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Results; cells that it holds are not done again.")
    ] = "sweep",
    threads: Annotated[int, typer.Option(metavar="COUNT", help="Threads of this process.", min=1)] = 1,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A Ray cluster instead; 'local' starts one on this machine."),
    ] = None,
    json: Json = None,
) -> None:
    """Simulate every combination of a grid; go on where an interrupted sweep was."""
    with needs("serving"):
        from kvreclaim.cli.compiling import said_if_compiling
        from kvreclaim.results import ResultsFolder
        from kvreclaim.serving.sweep import in_threads, read_grid, sweep

        grid = read_grid(file)
        folder = ResultsFolder(out)
        folder.claim("sweep")
        run: Run = in_threads(threads) if ray is None else _on_ray(ray)
        with said_if_compiling(), progress() as bar:
            task = bar.add_task("cells", total=len(grid.cells))
            table = sweep(grid, folder, run, lambda count: bar.advance(task, count))
        folder.write_run(
            "sweep", {"file": file, "cells": len(grid.cells)}, ["simulated"], ["numba", "polars"]
        )
    failed = table["error"].drop_nulls()
    if len(failed) == table.height:
        raise InputError(f"{out}: none of {table.height:,} cells could be simulated: {failed[0]}")
    emit_json(json, table.to_dicts())
    screen = console(json)
    screen.print(
        f"{table.height:,} cells in {printable(out)}/sweep.parquet; {len(failed):,} could not be simulated"
    )
    for reason in failed.unique(maintain_order=True).head(3):
        screen.print(f"  {printable(reason)}")


def _on_ray(address: str) -> Run:
    with needs("ray"):
        from kvreclaim.serving.ray_cluster import on_ray

        return on_ray(address)
