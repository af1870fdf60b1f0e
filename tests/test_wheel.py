"""The wheel: what is in it, and that it runs in an empty environment with the base dependencies alone."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from command_line import names

from kvreclaim import __version__

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kvreclaim"


def finished(*command, **options):
    """Run a command that must succeed; return its stdout."""
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    finished(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    return folder / names(folder)[0]


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """An environment's folder of programs, with the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("environment")
    finished(sys.executable, "-m", "venv", "--without-pip", folder)
    programs = folder / "bin"
    pip = [sys.executable, "-m", "pip", "--python", programs / "python", "--disable-pip-version-check"]
    finished(*pip, "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    finished(*pip, "check")
    return programs


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    package = {f"kvreclaim/{file.relative_to(SOURCE)}" for file in SOURCE.rglob("*") if file.is_file()}
    assert {name for name in held if name.startswith("kvreclaim/")} == {
        name for name in package if "__pycache__" not in name
    }
    about = f"kvreclaim-{__version__}.dist-info/"
    assert {name.split("/")[0] + "/" for name in held} == {"kvreclaim/", about}
    assert {"kvreclaim/py.typed", f"{about}licenses/LICENSE", f"{about}entry_points.txt"} <= held
    assert any(name.startswith("kvreclaim/report/assets/") for name in held)


def test_the_wheel_requires_four_packages_and_offers_the_extras(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"kvreclaim-{__version__}.dist-info/METADATA").decode()
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    base = {line.split()[1].split(">")[0] for line in required if "extra ==" not in line}
    assert base == {"numpy", "safetensors", "typer", "rich"}
    assert {"Provides-Extra: report", "Provides-Extra: dev"} <= set(metadata.splitlines())


def test_the_library_runs(environment, tmp_path):
    code = """
import sys
import numpy as np
import kvreclaim

keep = np.ones((2, 3, 64), bool)
keep[:, :, 16:48] = False
print(kvreclaim.__version__, kvreclaim.audit(keep).free_blocks, "polars" in sys.modules)
kvreclaim.save_keep_masks("masks.safetensors", [kvreclaim.KeepMask(keep, "middle")])
"""
    shown = finished(environment / "python", "-c", code, cwd=tmp_path).split()
    assert shown == [__version__, "2", "False"]
    rows = finished(environment / "kvreclaim", "audit", "masks.safetensors", "--json", "-", cwd=tmp_path)
    assert [(row["policy"], row["physical_reclaim"]) for row in json.loads(rows)] == [("middle", 0.5)] * 3


def test_the_command_line_runs(environment, tmp_path):
    program = environment / "kvreclaim"
    assert finished(program, "--version") == f"kvreclaim {__version__}\n"
    assert finished(environment / "python", "-m", "kvreclaim", "--version", cwd=tmp_path) == (
        f"kvreclaim {__version__}\n"
    )
    assert "StreamingLLM" in finished(program, "bound")
    assert "nano-vllm" in finished(program, "runtimes")


@pytest.mark.parametrize("command", [["reproduce", "--out", "report"], ["page", "."]])
def test_commands_that_need_the_report_extra_say_so_in_one_line(environment, tmp_path, command):
    done = subprocess.run(
        [environment / "kvreclaim", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'kvreclaim[report]'" in done.stderr
    assert names(tmp_path) == []
