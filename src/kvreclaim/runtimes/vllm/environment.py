"""The environment that an engine in this process wants, where the user does not say otherwise."""

from __future__ import annotations

import os


def _one_core() -> str:
    """Return the last core that this process may use, for vLLM to bind to: several wait for each other."""
    return str(max(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else "auto"


ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the pool is set by its blocks
    "VLLM_CPU_OMP_THREADS_BIND": _one_core(),
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Set before vLLM is imported, where the environment does not say otherwise."""


def set_environment() -> None:
    """Set `ENVIRONMENT`; before vLLM, transformers or the hub's client are imported, which read it then."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
