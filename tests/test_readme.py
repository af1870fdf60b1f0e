"""The README's examples run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def test_the_python_example_runs():
    (example,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("shared 0.5 0.0 0.5")


def commands():
    lines = [line.split("#")[0].split("|")[0] for block in blocks("") for line in block.splitlines()]
    return [line.split()[1:] for line in lines if line.startswith("kvreclaim ")]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_of_the_readme_exists_with_its_options(words):
    options = [word for word in words if word.startswith("--")]
    shown = subprocess.run(
        [sys.executable, "-m", "kvreclaim", words[0], "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(option in shown for option in options), (words, shown)


def test_there_are_commands():
    assert len(commands()) >= 8
