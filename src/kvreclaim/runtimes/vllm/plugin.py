"""The entry point that vLLM calls in each of its processes.

Nothing is imported here but the standard library: without the option set, loading the plugin costs a look at
the environment.
"""

from __future__ import annotations

import os


def register() -> None:
    """Patch vLLM if ``KVRECLAIM_VLLM`` is set; else do nothing. A second call does nothing more.

    Raises
    ------
    InputError
        If the option can't be used, or this version of vLLM is not supported.
    """
    if not os.environ.get("KVRECLAIM_VLLM", "").strip():
        return
    from kvreclaim.runtimes.vllm.options import from_environment
    from kvreclaim.runtimes.vllm.patches import apply
    from kvreclaim.runtimes.vllm.versions import check_version

    from_environment()
    check_version()
    apply()
