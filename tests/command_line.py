"""How tests run the command line: in this process, where there are many cases, or in one of its own."""

import io
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from kvreclaim.cli import main

ENVIRONMENT = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}


class Answer(NamedTuple):
    """Exit status and what was written to stdout and stderr."""

    status: int
    out: str
    err: str


def call(*arguments, columns=80):
    """Run ``kvreclaim`` with some arguments in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    command = ["kvreclaim", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", command),
        mock.patch.dict(os.environ, {"COLUMNS": str(columns)}),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            status = stop.code
    return Answer(status, *(stream.buffer.getvalue().decode() for stream in _flushed(out, err)))


def take_interrupts():
    """Let a process to be take interrupts, which a shell's background job inherits as ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*arguments, **options):
    """Start ``python -m kvreclaim`` with some arguments as a process of its own, its streams piped."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "kvreclaim", *map(str, arguments)]
    return subprocess.Popen(command, preexec_fn=take_interrupts, **{"env": ENVIRONMENT, **streams, **options})


def run(*arguments, **options):
    """Run ``python -m kvreclaim`` with some arguments as a process of its own."""
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=60)
    return Answer(process.returncode, (out or b"").decode(), (err or b"").decode())


def refused(answer, *words):
    """Check that bad input was refused as it should be: one line on stderr, status 2, nothing on stdout."""
    assert (answer.status, answer.out) == (2, ""), answer
    lines = answer.err.splitlines()
    assert len(lines) == 1, answer.err
    assert lines[0].startswith("kvreclaim: ")
    assert lines[0].isprintable()
    for word in words:
        assert word in lines[0]


def write_masks(path, **masks):
    """Write a plain ``.npz`` file of bool arrays, as another program would; return its path."""
    np.savez(path, **masks)
    return path


def alive(tokens, *kept):
    """Return a ``[tokens]`` mask that keeps some ranges of tokens."""
    mask = np.zeros(tokens, bool)
    for part in kept:
        mask[part] = True
    return mask


def names(folder="."):
    """Return the names of a folder's files, in order."""
    return sorted(path.name for path in Path(folder).iterdir())


def _flushed(*streams):
    for stream in streams:
        stream.flush()
    return streams
