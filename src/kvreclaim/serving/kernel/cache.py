"""Where compiled kernels are kept: a folder of its own for each state of the sources.

Numba checks the file of the function that it loads, not those of the functions called by it; compiled code of
an older kernel would come back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from numba import config


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
