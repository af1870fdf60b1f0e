"""What to say when a command's optional packages are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from kvreclaim.errors import InputError

# What each extra brings, as it is imported.
PACKAGES = {
    "models": ("torch", "transformers", "kvpress", "gguf"),
    "ray": ("ray",),
    "serving": ("numba", "polars"),
    "report": ("polars", "altair", "vl_convert"),
}


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Say in one line which extra to install where one of its packages is missing, before any work is done.

    Raises
    ------
    InputError
        If a package of the extra, or another that is not kvreclaim's own, can't be imported.
    """
    try:
        for package in PACKAGES[extra]:
            import_module(package)
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("kvreclaim"):
            raise
        raise InputError(
            f"needs the package {error.name}; install it: pip install 'kvreclaim[{extra}]'"
        ) from error
