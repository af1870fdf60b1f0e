"""What reaches a terminal, a pipe or a full disk: labels as plain text, 80 columns, no traceback."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from command_line import ENVIRONMENT, alive, call, names, refused, run, start, take_interrupts, write_masks

COMMANDS = [["audit", "m.npz"], ["bound"], ["runtimes"]]
LABELS = {
    "<script>alert(1)</script>": "<script>alert(1)</script>",
    "[red]snapkv[/red]": "[red]snapkv[/red]",
    "[/]": "[/]",
    ":smile:": ":smile:",
    "été–漢字": "été–漢字",
    "\x1b[2J\x1b[31mred": r"\x1b[2J\x1b[31mred",
    "bell\a": r"bell\x07",
    "two\r\nlines\tof": r"two\r\nlines\tof",
    "\u202efdp": r"\u202efdp",
    "\x9b31m": r"\x9b31m",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_masks("m.npz", m=alive(64, slice(0, 16)))
    return tmp_path


@pytest.mark.parametrize("label", LABELS)
def test_labels_are_shown_as_text(folder, label):
    masks = write_masks("labels.npz", **{label: alive(64, slice(0, 16))})
    answer = call("audit", masks, "--json", "m.json")
    assert (answer.status, answer.err) == (0, "")
    assert all(line.isprintable() for line in answer.out.splitlines())
    rows = answer.out.rpartition("─")[2].splitlines()
    assert LABELS[label] in "".join(re.sub(r" +[\d.]+%.*", "", row).strip() for row in rows)
    assert {row["policy"] for row in json.loads(Path("m.json").read_text())} == {label}


def test_a_long_label_is_folded_and_no_number_is_cut_at_80_columns(folder):
    tokens = 1 << 21
    random = np.random.default_rng(0).random(tokens) < 0.5
    masks = write_masks("m.npz", **{"Z" * 60: random, "q": random})
    for model in [], ["--model", "llama-3.1-405b"]:
        out = call("audit", masks, *model).out
        rows = json.loads(call("audit", masks, *model, "--json", "-").out)
        assert max(map(len, out.splitlines())) <= 80
        assert call("audit", masks, *model, columns=20).out == out  # rather too wide than cut
        assert "…" not in out
        assert out.count("Z") == 60
        moved = rows[0]["packing"]["moved_bytes" if model else "moved_pairs"]
        assert (f"{moved / 2**30:,.2f}" if model else f"{moved:,}") in out


@pytest.mark.parametrize(
    "command", [["bound", "--tokens", "1" + "0" * 12, "--heads", "1024"], ["runtimes"], ["bound"]]
)
def test_other_tables_fit_80_columns(command):
    out = call(*command).out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


@pytest.mark.parametrize(
    "command", [*COMMANDS, *([*command, "--json", "-"] for command in COMMANDS), ["--help"]]
)
def test_a_reader_who_left_is_no_error(folder, command):
    reader, writer = os.pipe()
    os.close(reader)
    answer = run(*command, stdout=writer)
    os.close(writer)
    assert (answer.status, answer.err if "-" not in command else "") == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "command", [["bound"], ["runtimes", "--json", "-"], ["bound", "--json", "/dev/full"]]
)
def test_a_full_disk_is_one_line(folder, command):
    with Path("/dev/full").open("w") as full:
        answer = run(*command, stdout=full)
    assert answer.status == 2
    assert answer.err.splitlines()[-1].startswith("kvreclaim: ")
    assert "No space left on device" in answer.err
    assert "Traceback" not in answer.err


def test_no_stdout_at_all(folder):
    code = (
        "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'kvreclaim', 'bound'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_that_knows_only_ascii(folder):
    for command in COMMANDS:
        answer = run(*command, env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"})
        assert (answer.status, answer.err) == (0, "")
        assert answer.out.isascii()


def test_a_file_name_that_is_not_unicode(folder):
    name = os.fsdecode(b"m\xff.npy")
    with open(name, "wb") as file:  # noqa: PTH123 (np.save would add an ending to a path of bytes)
        np.save(file, alive(64, slice(0, 16)))
    answer = run("audit", name, "--json", "-", "--out", "out")
    assert answer.status == 0
    escaped = r"m\udcff.npy"  # as text: half a character in JSON is what most programs refuse to read
    assert json.loads(answer.out)[0]["file"] == escaped
    assert json.loads((folder / "out" / "audit.json").read_text())[0]["file"] == escaped
    assert r"m\udcff" in answer.err
    refused(run("audit", os.fsdecode(b"\xff.npz")), r"\udcff.npz: no such file")


def test_stderr_stays_empty_where_nothing_is_wrong(folder):
    for command in COMMANDS:
        answer = run(*command)
        assert (answer.status, answer.err) == (0, "")
        assert "\x1b" not in answer.out


def test_json_through_devices_pipes_and_links(folder):
    expected = json.loads(call("audit", "m.npz", "--json", "-").out)
    answer = run("audit", "m.npz", "--json", "/dev/stderr")
    assert json.loads(answer.err) == expected
    assert run("audit", "m.npz", "--json", "/dev/null").status == 0
    assert not Path("/dev/null").is_file()
    Path("link.json").symlink_to("target.json")
    call("audit", "m.npz", "--json", "link.json")
    assert Path("link.json").is_symlink()
    assert json.loads(Path("target.json").read_text()) == expected


def test_ctrl_c_ends_with_130_and_writes_nothing(folder):
    code = """
import time
import kvreclaim.audits as audits
from kvreclaim.cli import main

def wait(*arguments, **options):
    print("ready", flush=True)
    time.sleep(60)

audits.audit_files = wait
main()
"""
    command = [sys.executable, "-c", code, "audit", "m.npz", "--out", "out", "--json", "m.json"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=ENVIRONMENT, preexec_fn=take_interrupts, **streams)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert err.decode().splitlines() == ["kvreclaim: interrupted; files written so far are whole"]
    assert names() == ["m.npz"]


def test_a_closed_stdin_and_version(folder):
    with start("--version") as process:
        assert process.communicate(timeout=60)[0].startswith(b"kvreclaim 0.")
    assert process.returncode == 0


def in_group(group):
    """Count the processes of a group, but for those that have ended."""
    states = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            state, _parent, of_group = stat.read_text().rpartition(")")[2].split()[:3]
            states += [state] if int(of_group) == group else []
    return sum(state not in "ZX" for state in states)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("seconds", [0.0, 0.2, 3.0], ids=["workers-start", "workers-import", "at-work"])
def test_ctrl_c_in_a_terminal_reaches_all_processes_and_is_one_line(folder, seconds):
    arguments = ["reproduce", "--jobs", "2", "--seeds", "200", "--out", "out"]
    process = start(*arguments, process_group=0)
    while in_group(process.pid) < 3 and process.poll() is None:  # it, multiprocessing's tracker, a worker
        time.sleep(0.01)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert err.decode().splitlines() == ["kvreclaim: interrupted; files written so far are whole"]
    assert (process.returncode, out) == (130, b"")
    last = time.monotonic() + 10
    while in_group(process.pid) and time.monotonic() < last:  # the tracker ends when its pipe does
        time.sleep(0.01)
    assert in_group(process.pid) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stderr_leaves_the_exit_status(folder):
    with Path("/dev/full").open("w") as full:
        assert run("audit", "none.npz", stderr=full).status == 2


def test_what_was_written_is_named_on_one_line_without_what_steers_a_terminal(folder):
    name = "red\x1b[31m\nblue"
    call("audit", "m.npz", "--out", "audited")
    for command in (["audit", "m.npz", "--out", name], ["page", "audited", "--out", f"{name}.html"]):
        (line,) = [line for line in call(*command).out.splitlines() if line.startswith("wrote")]
        assert "red\\x1b[31m\\nblue" in line
        assert line.isprintable()
