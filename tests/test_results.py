"""Results folders: files are whole or not there, JSON has no NaN, ``run.json`` has all it should."""

import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from command_line import names

from kvreclaim import InputError, __version__
from kvreclaim.results import ResultsFolder, as_csv, as_json, check_writable, write_bytes


def python(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    file = tmp_path / "table.csv"
    for content in b"old", b"new and longer", b"", b"x":
        write_bytes(file, content)
        assert file.read_bytes() == content
    assert names(tmp_path) == ["table.csv"]


def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path):
    file = tmp_path / "table.csv"
    file.write_bytes(b"old")
    code = """
import resource, sys
from kvreclaim import InputError
from kvreclaim.results import write_bytes

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # a disk with room for 1,000 bytes a file
try:
    write_bytes(sys.argv[1], bytes(5000))
except InputError as error:
    print(error)
"""
    for target in file, tmp_path / "new.csv":
        done = python(code, target)
        assert done.stderr == ""
        assert done.stdout.startswith(f"{target}: can't be written (File too large)")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["table.csv"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "table.csv"
    file.write_bytes(b"old")
    write_whole = Path.write_bytes

    def interrupted(path, data):
        write_whole(path, data[:3])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(file, b"new and longer")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["table.csv"]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_process_leaves_the_old_file_or_the_new_one(tmp_path):
    file = tmp_path / "table.csv"
    code = """
import sys
from kvreclaim.results import write_bytes

while True:
    for letter in b"ab":
        write_bytes(sys.argv[1], bytes([letter]) * (16 << 20))
"""
    for wait in 0.0, 0.005, 0.02:
        file.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", code, file]) as process:
            while not file.exists():
                assert process.poll() is None
                time.sleep(0.001)
            time.sleep(wait)
            process.kill()
        assert file.read_bytes() in (b"a" * (16 << 20), b"b" * (16 << 20))


@pytest.mark.parametrize("name", ["", ".", "..", "none/x", "file/x", "folder", "a" * 300])
def test_where_no_file_can_be(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("folder").mkdir()
    for refuse in check_writable, lambda path: write_bytes(path, b"new"):
        with pytest.raises(InputError, match="can't be written") as caught:
            refuse(name)
        assert "\n" not in str(caught.value)
    assert names() == ["file", "folder"]
    assert names("folder") == []


def test_checking_writes_nothing(tmp_path):
    (tmp_path / "old").write_text("old")
    for name in "old", "new":
        check_writable(tmp_path / name)
    assert names(tmp_path) == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    for content in b"1", b"2":
        write_bytes(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "folder" / "file").read_bytes() == content


def test_a_pipe_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_writable(tmp_path / "pipe")
    write_bytes(tmp_path / "pipe", b"some")
    assert os.read(reader, 10) == b"some"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_json_has_null_for_nan_and_infinities_at_any_depth():
    value = {
        "a": [math.nan, (1.5, -math.inf)],
        "b": OrderedDict(c=np.float64("nan"), d=True, e=None, f="NaN"),
    }
    assert json.loads(as_json(value)) == {
        "a": [None, [1.5, None]],
        "b": {"c": None, "d": True, "e": None, "f": "NaN"},
    }


@pytest.mark.parametrize("number", [0.1, 1e-300, 2**63, 1 / 3, -0.0])
def test_json_keeps_numbers_exactly(number):
    assert json.loads(as_json(number)) == number


def test_json_is_readable_text():
    assert as_json({"é": ["–"]}) == '{\n "é": [\n  "–"\n ]\n}\n'


def test_a_folder_is_made_and_other_files_in_it_are_left(tmp_path):
    folder = ResultsFolder(tmp_path / "deep" / "out")
    assert names(tmp_path) == []  # nothing yet: a run that fails or is interrupted leaves no empty folder
    assert folder.write("table.csv", "a,é\n") == folder.path / "table.csv"
    (folder.path / "mine").write_text("mine")
    folder.write("figures/one.svg", b"<svg/>")
    again = ResultsFolder(folder.path)
    again.write("table.csv", "b\n")
    assert names(folder.path) == ["figures", "mine", "table.csv"]
    assert (folder.path / "table.csv").read_text() == "b\n"
    assert (folder.path / "figures" / "one.svg").read_bytes() == b"<svg/>"
    assert (folder.path / "mine").read_text() == "mine"


@pytest.mark.parametrize("path", ["", "file", "file/out", "a" * 300])
def test_no_folder_there(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    with pytest.raises(InputError, match="--out") as caught:
        ResultsFolder(path)
    assert "\n" not in str(caught.value)
    assert (names(), Path("file").read_text()) == (["file"], "mine")


def test_a_folder_that_a_file_took_the_place_of(tmp_path):
    folder = ResultsFolder(tmp_path / "out")
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="--out"):
        folder.write("table.csv", "a\n")
    assert (tmp_path / "out").read_text() == "mine"


def test_run_json_counts_the_rows_of_tables(tmp_path):
    folder = ResultsFolder(tmp_path)
    folder.write("words.csv", as_csv(("said",), [{"said": "one\nline"}, {"said": "two, three"}]))
    folder.write("none.csv", as_csv(("said",), []))
    folder.write("notes.txt", "not a table\n")
    folder.write_run("audit", {}, ["measured"], [])
    assert json.loads((tmp_path / "run.json").read_text())["rows"] == {"words.csv": 2, "none.csv": 0}


def test_rows_are_counted_once_the_work_is_done(tmp_path):
    folder = ResultsFolder(tmp_path)
    folder.write_run("measure", {"prompts": 2}, ["measured"], [])
    before = json.loads((tmp_path / "run.json").read_text())
    folder.write("measured.csv", as_csv(("kl",), [{"kl": 0.5}]))
    folder.count_rows()
    assert json.loads((tmp_path / "run.json").read_text()) == {**before, "rows": {"measured.csv": 1}}


def test_run_json(tmp_path):
    before = datetime.now(UTC).replace(microsecond=0)
    parameters = {"seeds": 30, "files": ("a.npz",), "level": math.nan}
    packages = ["numpy", "no-such-package"]
    ResultsFolder(tmp_path).write_run("reproduce", parameters, ["simulated", "closed form"], packages)
    run = json.loads((tmp_path / "run.json").read_text())
    assert list(run) == ["schema", "command", "created", "parameters", "kinds", "versions"]
    assert before <= datetime.fromisoformat(run["created"]) <= datetime.now(UTC)
    assert run["parameters"] == {"seeds": 30, "files": ["a.npz"], "level": None}
    assert (run["schema"], run["command"], run["kinds"]) == (1, "reproduce", ["simulated", "closed form"])
    versions = {"kvreclaim": __version__, "python": platform.python_version(), "numpy": np.__version__}
    assert run["versions"] == versions


def test_an_unknown_kind_of_number_is_refused(tmp_path):
    with pytest.raises(ValueError, match="guessed"):
        ResultsFolder(tmp_path).write_run("audit", {}, ["measured", "guessed"], [])
    assert names(tmp_path) == []


def test_a_run_goes_on_only_as_it_was_begun_but_for_what_may_be_replaced(tmp_path):
    def begin(**parameters):
        ResultsFolder(tmp_path).begin_run("measure", parameters, ["measured"], ["numpy"], ["needles"])

    def written():
        return json.loads((tmp_path / "run.json").read_text())

    begin(prompts=5)
    before = written()
    begin(prompts=5, needles=None)
    assert written() == before
    begin(prompts=5, needles={"trials": 70})
    assert written() == {**before, "parameters": {"prompts": 5, "needles": {"trials": 70}}}
    with pytest.raises(InputError, match="was begun with prompts 5, this is 6; pass another --out"):
        begin(prompts=6, needles={"trials": 80})
    assert written()["parameters"]["needles"] == {"trials": 70}
    other = {**written(), "versions": {**before["versions"], "numpy": "1.0"}}
    (tmp_path / "run.json").write_text(json.dumps(other))
    with pytest.raises(InputError, match=r"was begun with numpy 1\.0"):
        begin(prompts=5, needles={"trials": 70})
