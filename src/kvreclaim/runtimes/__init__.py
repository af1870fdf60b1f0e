"""Real paged runtimes: what an eviction gives back there, observed from their own objects."""
