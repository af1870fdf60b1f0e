"""Benchmarks: ``python -m benchmarks --out bench``. Ratios within one run, on one thread."""

import os

# Before NumPy is imported, for this process and those that it starts.
for _library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR"):
    os.environ[f"{_library}_NUM_THREADS"] = "1"
os.environ["POLARS_MAX_THREADS"] = "1"
