"""Traces from files: Azure, Mooncake, BurstGPT, vidur, vLLM's benchmarks, and plain tables."""

from kvreclaim.serving.traces.read import open_trace, read_trace

__all__ = ["open_trace", "read_trace"]
