"""What to say before numba compiles: it takes a while, once."""

from __future__ import annotations

import typer


def say_if_compiling() -> None:
    """Say on stderr that the simulator is compiled first, where no compiled one is kept."""
    from kvreclaim.serving.kernel import cache_folder

    if not any(cache_folder().rglob("*.nbc")):
        typer.echo("kvreclaim: compiling the simulator, once for this version (about 10 s)", err=True)
