"""Where compiled kernels are kept, a folder for each state of the sources, and when one is compiled.

Numba checks the file of the function that it loads, not those of the functions called by it; compiled code of
an older kernel would come back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import config
from numba.core import event


def cache_folder() -> Path:
    """Return the folder for these sources, in $NUMBA_CACHE_DIR or the user's cache."""
    digest = sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    base = Path(chosen) if chosen else cache / "kvreclaim"
    return base / f"kernel-{digest.hexdigest()[:16]}"


@contextmanager
def keyed_by_sources() -> Iterator[None]:
    """Let functions that are decorated in here keep their compiled code in `cache_folder`."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before


@contextmanager
def compiling(say: Callable[[], None]) -> Iterator[None]:
    """Call once before anything is compiled in here; what comes from the cache is not."""
    listener = _First(say)
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)


class _First(event.Listener):  # type: ignore[misc]  # numba has no types
    """Calls at the first start of an event."""

    def __init__(self, say: Callable[[], None]) -> None:
        self._say: Callable[[], None] | None = say

    def on_start(self, event: Any) -> None:  # noqa: ARG002  # numba's call
        say, self._say = self._say, None
        if say is not None:
            say()

    def on_end(self, event: Any) -> None:
        """Do nothing."""
