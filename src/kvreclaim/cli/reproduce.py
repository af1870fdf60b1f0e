"""``kvreclaim reproduce``: the published study, its tables, figures and page."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from kvreclaim.cli.extras import needs
from kvreclaim.cli.output import Json, console, emit_json, plain_table, progress, wrote
from kvreclaim.study.settings import PUBLISHED_SEEDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from kvreclaim.results import ResultsFolder
    from kvreclaim.study.published import Judged
    from kvreclaim.study.reproduce import Reproduction

PACKAGES = ("numpy", "polars", "altair", "vl-convert-python")


def reproduce_command(
    out: Annotated[str, typer.Option(metavar="DIR", help="The results folder to write.")] = "report",
    seeds: Annotated[int, typer.Option(metavar="COUNT", help="Runs per simulated figure.")] = PUBLISHED_SEEDS,
    seed_base: Annotated[int, typer.Option(metavar="SEED", help="Seed of the first run.")] = 0,
    jobs: Annotated[
        int, typer.Option(metavar="COUNT", help="Processes; the results do not depend on it.")
    ] = 1,
    json: Json = None,
) -> None:
    """Simulate the published study anew, and print its figures beside the reproduced ones.

    Exit status 1 if a figure is not reproduced with the 30 runs of the study.
    """
    with needs("report"):
        from kvreclaim.results import ResultsFolder

        folder = ResultsFolder(out)
        folder.claim("reproduce")
        found = _simulate(seeds, seed_base, jobs)
        _write_tables(folder, found, {"seeds": seeds, "seed_base": seed_base})
        _draw(folder, jobs)
    emit_json(json, found.published_figures().to_dicts())
    screen = console(json)
    screen.print(_table(found.published, seeds))
    screen.print(_tally(found.published))
    screen.print(wrote(folder.path, "tables, figures and index.html"))
    if found.not_reproduced and seeds == PUBLISHED_SEEDS:
        names = ", ".join(figure.id for figure in found.not_reproduced)
        screen.print(f"not reproduced: {names}")
        raise typer.Exit(1)


def _simulate(seeds: int, seed_base: int, jobs: int) -> Reproduction:
    from kvreclaim.study.reproduce import reproduce

    with progress() as bar:
        task = bar.add_task("experiments", total=None)

        def advance(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=f"experiments ({name})")

        return reproduce(seeds, seed_base, jobs, advance)


def _write_tables(folder: ResultsFolder, found: Reproduction, parameters: dict[str, int]) -> None:
    for name, text in found.files().items():
        folder.write(name, text)
    folder.write_run("reproduce", parameters, kinds=["closed form", "simulated"], packages=PACKAGES)


def _draw(folder: ResultsFolder, jobs: int) -> None:
    """Write the static figures and the page from the folder's tables: side by side, given two processes."""
    from functools import partial

    from kvreclaim.processes import running
    from kvreclaim.report import render_page, write_figures

    figures = folder.path / "figures"
    with progress() as bar:
        bar.add_task("figures and page", total=None)
        if jobs == 1:
            write_figures(folder.path, figures)
            folder.write("index.html", render_page([folder.path]))
            return
        with running({"figures": partial(write_figures, folder.path, figures)}, workers=1) as drawn:
            folder.write("index.html", render_page([folder.path]))
            for future in drawn:
                future.result()


def _table(published: Sequence[Judged], seeds: int) -> Table:
    """Build the table of all figures, by experiment: the part of an id before the first hyphen."""
    table = plain_table(
        "The study's figures, as published and as reproduced",
        f"{seeds} runs per simulated figure, ± population deviation. "
        "published.csv adds oracles and tolerances.",
    )
    table.add_column("figure", no_wrap=True)
    table.add_column("published", justify="right")
    table.add_column("reproduced", justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for experiment, figures in groupby(published, key=lambda figure: figure.id.partition("-")[0]):
        table.add_row(experiment, style="bold")
        for figure in figures:
            name = figure.id.partition("-")[2]
            table.add_row(f"  {name}", figure.published, _reproduced(figure), figure.status)
    return table


def _reproduced(figure: Judged) -> str:
    spread = f" ± {_digits(figure.std, 2)}" if figure.std else ""
    unit = " %" if figure.published.endswith("%") else ""
    return f"{_digits(figure.reproduced, 4)}{spread}{unit}"


def _digits(value: float, count: int) -> str:
    """Return a number with so many significant digits, and all of those before the point."""
    return f"{value:,.{count}g}" if abs(value) < 10**count else f"{value:,.0f}"


def _tally(published: Sequence[Judged]) -> str:
    """Return how many figures have each status, and of those within how many are words."""
    from kvreclaim.study.published import COMPATIBLE, EXACT, NOT_REPRODUCED, WITHIN

    counts = Counter(figure.status for figure in published)
    words = sum(figure.status == WITHIN and figure.in_words for figure in published)
    return (
        f"{counts[EXACT]} exact, {counts[WITHIN]} within ({counts[WITHIN] - words} figures within rounding "
        f"and three standard errors, {words} claims in words that hold as read), "
        f"{counts[COMPATIBLE]} compatible, {counts[NOT_REPRODUCED]} not reproduced"
    )
