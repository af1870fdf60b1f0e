"""Traces from files: Azure, Mooncake, BurstGPT, vidur, vLLM's benchmarks, and plain tables."""

from kvreclaim.serving.traces.read import read_trace

__all__ = ["read_trace"]
