"""Settings that all tests share."""

from hypothesis import settings

# No deadline: a shared machine stalls now and then, and timings belong to the benchmarks.
settings.register_profile("kvreclaim", deadline=None, max_examples=100)
settings.load_profile("kvreclaim")
