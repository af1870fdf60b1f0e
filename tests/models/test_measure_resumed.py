"""A measurement alike in any number of processes, gone on with where it was interrupted, and refused."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_model
from small_models import torch
from tiny_measure import contents, differing, settings

from kvreclaim import InputError
from kvreclaim.capture.measure.run import measure

CELL_SECONDS = 60


def test_processes_make_no_difference(tiny, folder, tmp_path):
    steps = []
    measure(settings(tiny), tmp_path / "two", jobs=2, progress=lambda *step: steps.append(step))
    assert differing(tmp_path / "two", folder) == set()
    assert steps == [(done, 60) for done in range(61)]


def test_a_second_run_measures_nothing_and_changes_nothing(tiny, folder):
    before, steps = contents(folder), []
    cells = {file: file.stat().st_mtime_ns for file in folder.rglob("cells/**/*.json")}
    measure(settings(tiny), folder, progress=lambda *step: steps.append(step))
    assert steps == [(0, 0)]
    assert contents(folder) == before
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("cells/**/*.json")} == cells


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_run_is_gone_on_with(tiny, folder, tmp_path, jobs):
    out = tmp_path / "killed"
    process = start(tiny, out, jobs)
    done = wait_for(lambda: sorted(out.rglob("cells/**/*.json")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not children_of(process.pid))
    assert not (out / "measured.csv").exists()
    kept = {file: file.stat().st_mtime_ns for file in done}
    steps = []
    measure(settings(tiny), out, progress=lambda *step: steps.append(step))
    assert 0 < steps[-1][1] < 60
    assert differing(out, folder) == set()
    assert all(file.stat().st_mtime_ns == time for file, time in kept.items())


def test_a_run_that_failed_before_its_first_result_binds_none(tiny, tmp_path):
    with pytest.raises(InputError, match="pass other parameters, or another press"):
        measure(settings(tiny, policies=("snapkv:window_size=0",), prompts=1), tmp_path / "out")
    found = measure(settings(tiny, policies=("knorm",), prompts=1), tmp_path / "out")
    assert {row.policy for row in found.measured} == {"knorm"}


def start(tiny, out, jobs):
    asked = settings(tiny)
    code = (
        "from kvreclaim.capture.measure.run import measure\n"
        "from kvreclaim.capture.measure.settings import Settings\n"
        f"if __name__ == '__main__': measure({asked!r}, {str(out)!r}, {jobs})\n"
    )
    script = out.with_suffix(".py")  # a file, for what is spawned runs it too
    script.write_text(code)
    return subprocess.Popen([sys.executable, str(script)])


def wait_for(found):
    end = time.monotonic() + CELL_SECONDS
    while time.monotonic() < end:
        if answer := found():
            return answer
        time.sleep(0.01)
    raise AssertionError("it takes too long")


def children_of(parent):
    """Processes, still running, that a process (perhaps gone) had spawned: they name it in their command."""
    children = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"parent_pid={parent}".encode() in command.read_bytes():
                children.append(int(command.parent.name))
        except OSError:  # gone meanwhile
            continue
    return children


def test_other_parameters_in_the_same_folder_are_refused(tiny, folder):
    for other, words in (
        ({"context": 150}, "context 160, this is 150"),
        ({"policies": ("snapkv",)}, "other policies"),
        ({"ratios": (0.5,)}, "other ratios"),
        ({"target_kl": 0.1}, "target kl None, this is 0.1"),
    ):
        with pytest.raises(InputError, match=f"was begun with {words}; pass another --out"):
            measure(settings(tiny, **other), folder)


def test_another_text_of_the_same_name_is_refused(tiny, tmp_path):
    text = tmp_path / "text"
    text.write_text(tiny_model.text(1000, seed=1))
    asked = settings(tiny, texts=(str(text),), policies=("streaming-llm",), ratios=(0.5,))
    measure(asked, tmp_path / "out")
    text.write_text(tiny_model.text(1000, seed=2))
    with pytest.raises(InputError, match="was begun with other prompt texts"):
        measure(asked, tmp_path / "out")


def test_a_damaged_cell_is_measured_again(tiny, folder, tmp_path):
    asked = settings(tiny, policies=("streaming-llm",), prompts=1)
    measure(asked, tmp_path / "out")
    before = contents(tmp_path / "out")
    cells = sorted((tmp_path / "out").rglob("cells/**/*.json"))
    cells[0].write_text("{")
    cells[1].unlink()
    next((tmp_path / "out").rglob("masks/prompt-1/ratio-0.8/*.npz")).unlink()
    steps = []
    measure(asked, tmp_path / "out", progress=lambda *step: steps.append(step))
    assert steps[-1] == (3, 3)
    assert contents(tmp_path / "out") == before


def test_one_thread_only_while_it_measures(tiny, tmp_path):
    torch.set_num_threads(2)
    try:
        measure(settings(tiny, policies=("streaming-llm",), ratios=(0.5,), prompts=1), tmp_path / "out")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
