"""What the plugin changes in vLLM, each with its reason."""

from __future__ import annotations


def apply() -> None:
    """Patch the classes of vLLM that are listed in docs/vllm.md; a second call changes nothing."""
