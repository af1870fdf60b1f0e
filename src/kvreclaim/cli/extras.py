"""What to say when a command's optional packages are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvreclaim.errors import InputError


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Turn a missing package inside the block into one line that says which extra to install.

    Raises
    ------
    InputError
        If a package that is not kvreclaim's own can't be imported.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("kvreclaim"):
            raise
        raise InputError(
            f"needs the package {error.name}; install it: pip install 'kvreclaim[{extra}]'"
        ) from error
