"""What to say before numba compiles: it takes a while, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def said_if_compiling() -> Iterator[None]:
    """Say on stderr that the simulator is compiled first, where none is kept for what runs in here."""
    from kvreclaim.serving.kernel import compiling

    with compiling(_say):
        yield


def _say() -> None:
    typer.echo("kvreclaim: compiling the simulator, once for this version (15 to 30 s)", err=True)
