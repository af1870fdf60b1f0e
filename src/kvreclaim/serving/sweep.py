"""A grid of scenarios: each cell simulated once, its row kept as soon as it is done."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.results import ResultsFolder, as_json_line
from kvreclaim.serving.scenario import Scenario
from kvreclaim.serving.steptime import read_step_time
from kvreclaim.version import __version__

MOST_CELLS = 1_000_000
RENAMED = {"requests": "requests_simulated", "blocks": "blocks_usable"}
_LINES = "cells.jsonl"


@dataclass(frozen=True)
class Cell:
    """One point of the grid: its number, what varies, the scenario, and digests of the files it names."""

    number: int
    varied: Mapping[str, Any]
    scenario: Scenario
    contents: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """A hash of everything that the cell depends on: values, contents of files, this version."""
        whole = [vars(self.scenario), self.contents, __version__]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Grid:
    """The cells of a sweep's file, in the order of its axes."""

    file: str
    cells: tuple[Cell, ...]
    axes: tuple[str, ...]


def read_grid(path: str | PathLike[str]) -> Grid:
    """Read a TOML file: ``[fixed]`` values for all cells and ``[grid]`` lists, each an axis.

    Names of files are relative to the file: traces, masks, measured tables, step times.

    Raises
    ------
    InputError
        If the file can't be read, names something unknown, or the grid has no cells.
    """
    file = Path(path)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"{file}: can't be read ({error}); pass a TOML file with [fixed] and [grid]"
        ) from error
    unknown = set(content) - {"fixed", "grid"}
    fixed, grid = content.get("fixed", {}), content.get("grid", {})
    if unknown or not isinstance(fixed, dict) or not isinstance(grid, dict):
        raise InputError(f"{file}: pass the tables [fixed] and [grid] alone")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{file}: [grid] {name} is no list of values: a grid with no cells")
    for name in fixed.keys() & grid.keys():
        raise InputError(f"{file}: {name} is in [fixed] and in [grid]; pass it in one of them")
    if not grid:
        raise InputError(f"{file}: [grid] is empty, a grid with no cells; pass lists of values to vary")
    count = 1
    for values in grid.values():
        count *= len(values)
    if count > MOST_CELLS:
        raise InputError(f"{file}: {count:,} cells; pass at most {MOST_CELLS:,}")
    digest = lru_cache(maxsize=None)(_digest)
    cells = tuple(
        _cell(file, digest, number, fixed, dict(zip(grid, values, strict=True)))
        for number, values in enumerate(itertools.product(*grid.values()))
    )
    return Grid(str(file), cells, tuple(grid))


def _cell(
    file: Path,
    digest: Callable[[str], str],
    number: int,
    fixed: Mapping[str, Any],
    varied: Mapping[str, Any],
) -> Cell:
    values = {**fixed, **varied}
    for name in ("trace", "masks", "measured"):
        if isinstance(values.get(name), str) and values[name]:
            values[name] = str(file.parent / values[name])
    try:
        if isinstance(values.get("step_time"), str):
            values["step_time"] = read_step_time(values["step_time"], file.parent)
        made = Scenario.of(values)
        named = (made.trace, made.masks, made.measured, made.model)
        return Cell(number, varied, made, tuple(map(digest, named)))
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _digest(name: str) -> str:
    """Return a digest of a file's content, or of a measured folder's table; empty where there is none."""
    path = Path(name) / "measured.csv" if name and Path(name).is_dir() else Path(name)
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:  # no file, or one that the cell will say can't be read
        return ""


def simulate_cell(scenario: Scenario) -> dict[str, Any]:
    """Return the summary of a cell's simulation; a cell that can't be says why under ``error``."""
    try:
        return {**scenario.run().summary(), "error": None}
    except InputError as error:
        return {"error": str(error)}


Run = Callable[[Sequence[Cell]], Iterator[tuple[Cell, dict[str, Any]]]]


def in_threads(threads: int) -> Run:
    """Return what simulates cells in threads of this process: the kernel holds no lock."""

    def run(cells: Sequence[Cell]) -> Iterator[tuple[Cell, dict[str, Any]]]:
        with ThreadPoolExecutor(threads) as pool:
            ended: SimpleQueue[Future[dict[str, Any]]] = SimpleQueue()
            left, running = iter(cells), dict[Future[dict[str, Any]], Cell]()
            try:
                while True:
                    for cell in itertools.islice(left, 2 * threads - len(running)):
                        future = pool.submit(simulate_cell, cell.scenario)
                        running[future] = cell
                        future.add_done_callback(ended.put)
                    if not running:
                        return
                    future = ended.get()
                    yield running.pop(future), future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    return run


def sweep(grid: Grid, folder: ResultsFolder, run: Run, advance: Callable[[int], None]) -> pl.DataFrame:
    """Simulate the cells that the folder does not hold yet; write and return ``sweep.parquet``.

    Each cell's row is appended to ``cells.jsonl`` when it is done, so that an interrupted sweep goes on where
    it was; a half-written last line is left out.

    Parameters
    ----------
    grid
        The cells.
    folder
        Where results lie.
    run
        What simulates: `in_threads`, or `ray_cluster.on_ray`.
    advance
        Called with the number of cells done.
    """
    folder.claim("sweep")
    file = folder.place(_LINES)
    rows = _done(file)
    open_cells = [cell for cell in grid.cells if cell.key not in rows]
    advance(len(grid.cells) - len(open_cells))
    with file.open("a", encoding="utf-8") as lines:
        for cell, found in run(open_cells):
            rows[cell.key] = found
            lines.write(as_json_line({"key": cell.key, "row": found}))
            lines.flush()
            advance(1)
    table = pl.DataFrame(
        [{"cell": cell.number, **cell.varied, **_renamed(rows[cell.key])} for cell in grid.cells],
        infer_schema_length=None,
        strict=False,
    )
    table.write_parquet(folder.place("sweep.parquet"))
    return table


def _renamed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without names that are those of parameters: an axis keeps its own, and what was asked."""
    return {RENAMED.get(name, name): value for name, value in row.items()}


def _done(file: Path) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    whole: list[str] = []
    if not file.exists():
        return rows
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            found = json.loads(line)
            rows[found["key"]] = found["row"]
            whole.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    file.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
    return rows
