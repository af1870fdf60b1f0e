"""The cells of a sweep on a Ray cluster: tasks that are tried again when a worker dies."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.serving.sweep import Cell, Run, simulate_cell

_AHEAD = 4  # tasks waiting for each processor, so that none idles
_RETRIES = 8  # deaths of a worker that a cell survives
_LOCAL = "local"
_PATIENCE = 5.0  # seconds to answer in
# HTTP/2, on which gRPC runs (RFC 9113, 3.4, 4.1): what a client says first, how a server's answer begins.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_HEAD, _SETTINGS = 9, b"\x04"


def on_ray(address: str) -> Run:
    """Return what simulates cells on the cluster at an address, or for ``local`` on one of this machine.

    Raises
    ------
    InputError
        If nothing answers at the address.
    """
    if address not in {_LOCAL, "auto"}:
        _check_answer(address)
    # Ray would write a token into the home folder.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    quiet = {"include_dashboard": False} if address == _LOCAL else {"address": address}
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True, **quiet)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise _nobody(address) from error

    def run(cells: Sequence[Cell]) -> Iterator[tuple[Cell, dict[str, Any]]]:
        try:
            yield from _run(cells)
        finally:
            ray.shutdown()

    return run


def _check_answer(address: str) -> None:
    """Refuse an address where nothing listens, or no gRPC server: Ray itself would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE) as peer:
            peer.sendall(_HELLO)
            with peer.makefile("rb") as answer:
                if answer.read(_FRAME_HEAD)[3:4] != _SETTINGS:
                    raise _nobody(address)
    except InputError:
        raise
    except (OSError, ValueError, OverflowError) as error:
        raise _nobody(address) from error


def _nobody(address: str) -> InputError:
    return InputError(f"no Ray cluster at {address!r}; pass the address of one, or local")


def _run(cells: Sequence[Cell]) -> Iterator[tuple[Cell, dict[str, Any]]]:
    import ray

    task = ray.remote(max_retries=_RETRIES, num_cpus=1)(simulate_cell)
    most = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    left = iter(cells)
    running: dict[Any, Cell] = {}
    while True:
        for cell in left:
            running[task.remote(cell.scenario)] = cell
            if len(running) >= most:
                break
        if not running:
            return
        done, _ = ray.wait(list(running), num_returns=1)
        for reference in done:
            yield running.pop(reference), ray.get(reference)
