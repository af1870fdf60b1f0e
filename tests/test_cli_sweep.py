"""``sweep``: every cell once, gone on with where interrupted, on threads and on a Ray cluster."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import polars as pl
import pytest
from command_line import call, refused

from kvreclaim.results import ResultsFolder
from kvreclaim.serving.sweep import in_threads, read_grid, simulate_cell, sweep

TRACE = Path(__file__).parents[1] / "examples" / "traces" / "azure-conv-1000.csv"
GRID = """
[fixed]
trace = "t.csv"
step_time = [0.012, 2e-5, 1e-7, 9e-5]
requests = 200
[grid]
blocks = [400, 600, 900]
policy = ["none", "streaming-llm"]
"""


@pytest.fixture
def grid(tmp_path):
    shutil.copy(TRACE, tmp_path / "t.csv")
    (tmp_path / "g.toml").write_text(GRID)
    return tmp_path / "g.toml"


def rows_of(folder):
    return pl.read_parquet(folder / "sweep.parquet").drop("simulate_seconds")


def test_a_grid_has_each_combination_and_its_simulation(grid, tmp_path):
    found = json.loads(call("sweep", grid, "--out", tmp_path / "out", "--threads", 2, "--json", "-").out)
    assert [(row["blocks"], row["policy"]) for row in found[:3]] == [
        (399, "none"),
        (399, "streaming-llm"),
        (599, "none"),
    ]
    alone = simulate_cell(read_grid(grid).cells[3].scenario)
    for key in set(alone) - {"simulate_seconds"}:
        assert found[3][key] == alone[key]


def test_an_interrupted_sweep_goes_on(grid, tmp_path):
    read, folder = read_grid(grid), ResultsFolder(tmp_path / "out")
    done = []

    def three_then_stop(cells):
        for cell in cells[:3]:
            done.append(cell.number)
            yield cell, simulate_cell(cell.scenario)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(read, folder, three_then_stop, lambda _: None)
    with (tmp_path / "out" / "cells.jsonl").open("a") as lines:
        lines.write('{"key": "half a li')
    again = []

    def count(cells):
        again.extend(cell.number for cell in cells)
        yield from in_threads(1)(cells)

    sweep(read, folder, count, lambda _: None)
    assert (done, again) == ([0, 1, 2], [3, 4, 5])
    call("sweep", grid, "--out", tmp_path / "whole")
    assert rows_of(tmp_path / "out").equals(rows_of(tmp_path / "whole"))


def test_a_cell_that_cannot_be_is_named_and_the_others_go_on(grid, tmp_path):
    grid.write_text(GRID.replace('"none", "streaming-llm"', '"none", "lru"'))
    answer = call("sweep", grid, "--out", tmp_path / "out")
    assert "3 could not be simulated" in answer.out
    assert "lru" in answer.out
    assert rows_of(tmp_path / "out")["error"].null_count() == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[grid]\nblocks = []\n", "no cells"),
        ("[fixed]\nblocks = 5\n", "no cells"),
        ("[grid]\nblocks = 5\n", "no list"),
        ("[grid]\ncolour = [1]\n", "unknown parameter 'colour'"),
        ("[grid]\nblocks = ['many']\n", "blocks is 'many'"),
        ("[axes]\nblocks = [5]\n", "[fixed] and [grid]"),
        ("blocks = [", "can't be read"),
    ],
)
def test_grids_that_are_none(tmp_path, text, words):
    (tmp_path / "g.toml").write_text(text)
    refused(call("sweep", tmp_path / "g.toml", "--out", tmp_path / "out"), words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "127.0.0.1:x"])
def test_a_dead_cluster(grid, tmp_path, address):
    call("sweep", grid, "--out", tmp_path / "out")
    before = rows_of(tmp_path / "out")
    refused(call("sweep", grid, "--out", tmp_path / "out", "--ray", address), "no Ray cluster", address)
    assert rows_of(tmp_path / "out").equals(before)


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_worker_killed_in_the_middle_loses_no_cell(grid, tmp_path, monkeypatch):
    from kvreclaim.serving import ray_cluster

    marks = tmp_path / "marks"
    marks.mkdir()

    def simulate_and_die_once(scenario):
        """The first to come kills its worker; the others wait a little, so that it is in the middle."""
        try:
            (marks / "killed").touch(exist_ok=False)
        except FileExistsError:
            time.sleep(0.05)
            return simulate_cell(scenario)
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    monkeypatch.setattr(ray_cluster, "simulate_cell", simulate_and_die_once)
    read = read_grid(grid)
    run = ray_cluster.on_ray("local")
    table = sweep(read, ResultsFolder(tmp_path / "out"), run, lambda _: None)
    assert (marks / "killed").exists()
    assert table.height == len(read.cells) == 6
    assert table["error"].null_count() == 6
    call("sweep", grid, "--out", tmp_path / "threads")
    assert rows_of(tmp_path / "out").equals(rows_of(tmp_path / "threads"))
