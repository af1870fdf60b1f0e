"""``sweep``: every cell once, gone on with where interrupted, on threads and on a Ray cluster."""

import dataclasses
import http.server
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_line import call, refused, write_masks
from test_json_docs import keys_of

from kvreclaim.results import ResultsFolder
from kvreclaim.serving.scenario import Scenario
from kvreclaim.serving.steptime import CONSTANTS
from kvreclaim.serving.sweep import RENAMED, in_threads, read_grid, simulate_cell, sweep

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
    return pl.read_parquet(folder / "sweep.parquet").drop("simulate_seconds", strict=False)


def test_a_grid_has_each_combination_and_its_simulation(grid, tmp_path):
    found = json.loads(call("sweep", grid, "--out", tmp_path / "out", "--threads", 2, "--json", "-").out)
    assert [(row["blocks"], row["policy"]) for row in found[:3]] == [
        (400, "none"),
        (400, "streaming-llm"),
        (600, "none"),
    ]
    alone = simulate_cell(read_grid(grid).cells[3].scenario)
    for key in set(alone) - {"simulate_seconds"}:
        assert found[3][RENAMED.get(key, key)] == alone[key]
    results = {RENAMED.get(key, key) for key in keys_of("## `simulate`")}
    assert set(found[0]) == {"cell", "blocks", "policy", "error"} | results
    assert not {field.name for field in dataclasses.fields(Scenario)} & {
        RENAMED.get(key, key) for key in alone
    }
    table = pl.read_parquet(tmp_path / "out" / "sweep.parquet")
    assert table.filter(blocks=900)["blocks_usable"].to_list() == [899, 899]


def test_a_grid_of_requests_keeps_what_was_asked(grid, tmp_path):
    grid.write_text('[fixed]\ntrace = "t.csv"\nblocks = 900\n[grid]\nrequests = [0, 10]\n')
    found = json.loads(call("sweep", grid, "--out", tmp_path / "out", "--json", "-").out)
    assert [(row["requests"], row["requests_simulated"]) for row in found] == [(0, 1000), (10, 10)]


def test_cells_are_done_again_when_a_file_they_name_changes(grid, tmp_path, monkeypatch):
    (tmp_path / "fit.json").write_text(
        json.dumps({"constants": {name: {"value": 1e-4} for name in CONSTANTS}})
    )
    write_masks(tmp_path / "m.npz", m=np.ones(64, bool))
    grid.write_text(
        '[fixed]\ntrace = "t.csv"\nstep_time = "fit.json"\nmasks = "m.npz"\nblocks = 900\n'
        "[grid]\nrequests = [100]\n"
    )

    def row():
        found = call("sweep", grid, "--out", tmp_path / "out", "--json", "-")
        assert found.status == 0, found.err
        return json.loads(found.out)[0]

    first = row()
    assert row() == first  # its seconds too: not done again
    state = (tmp_path / "t.csv").stat()
    (tmp_path / "t.csv").write_text((tmp_path / "t.csv").read_text().replace(",44", ",45"))
    os.utime(tmp_path / "t.csv", ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    second = row()
    assert second["iterations"] != first["iterations"]
    write_masks(tmp_path / "m.npz", m=np.arange(64) < 32)
    third = row()
    assert third["blocks_freed"] > second["blocks_freed"] == 0
    (tmp_path / "fit.json").write_text(
        json.dumps({"constants": {name: {"value": 2e-4} for name in CONSTANTS}})
    )
    fourth = row()
    assert fourth["latency_p50"] > third["latency_p50"]
    monkeypatch.setattr("kvreclaim.serving.sweep.__version__", "another")
    assert row()["simulate_seconds"] != fourth["simulate_seconds"]


def test_a_number_out_of_range_fails_its_cell_alone(grid, tmp_path):
    grid.write_text('[fixed]\ntrace = "t.csv"\nblocks = 900\n[grid]\nrequests = [-5, 10]\nseed = [-1, 0]\n')
    found = json.loads(call("sweep", grid, "--out", tmp_path / "out", "--json", "-").out)
    assert [row["error"] is None for row in found] == [False, False, False, True]
    assert "requests is -5" in found[0]["error"]
    assert "seed is -1" in found[2]["error"]


def test_where_no_cell_can_be_simulated(grid, tmp_path):
    for name, value in (("gpu", "gtx"), ("model", "gpt-5"), ("trace", "none.csv")):
        fixed = {"trace": "t.csv", name: value}
        lines = "".join(f'{key} = "{text}"\n' for key, text in fixed.items())
        grid.write_text(f"[fixed]\n{lines}[grid]\nrequests = [10, 20]\n")
        refused(call("sweep", grid, "--out", tmp_path / name), "none of 2 cells", value)
        assert rows_of(tmp_path / name).height == 2


def test_a_grid_with_a_byte_order_mark(grid):
    cells = read_grid(grid).cells
    grid.write_bytes(b"\xef\xbb\xbf" + grid.read_bytes())
    assert read_grid(grid).cells == cells


def test_help_names_the_tables():
    found = " ".join(call("sweep", "--help").out.split())
    assert "[fixed]" in found
    assert "[grid]" in found


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
        ("[fixed]\nblocks = 5\n[grid]\nblocks = [6]\n", "blocks is in [fixed] and in [grid]"),
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


class Silent(http.server.BaseHTTPRequestHandler):
    """No Ray cluster."""

    def log_message(self, *_):
        """Say nothing."""


def test_an_address_where_something_else_listens(grid, tmp_path):
    with http.server.HTTPServer(("127.0.0.1", 0), Silent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        refused(call("sweep", grid, "--out", tmp_path / "out", "--ray", address), "no Ray cluster", address)
        server.shutdown()


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
