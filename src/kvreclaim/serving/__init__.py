"""Serving: traces, a fast simulator of vLLM's scheduler, capacity; numba lives here only."""
