"""``python -m benchmarks --out bench [--quick]``: measure, print the table and write it."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator

from benchmarks import capture, compaction, occupancy, serving, study
from benchmarks.table import Row, as_csv, markdown, verdict
from kvreclaim.results import ResultsFolder

BENCHMARKS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "occupancy": occupancy.run,
    "compaction": compaction.run,
    "study": study.run,
    "serving": serving.run,
    "capture": capture.run,
}
TEXT = """# Benchmarks

Times and ratios within one run, on one thread except where it says so. Each is the median of interleaved
pairs (A B A B ...), a ratio taken pair by pair, with the 95 % interval of the median from order statistics;
of fewer than six values, all of them. A missed target says so; numbers without one are there to compare.

{table}
{verdict}
"""


def main() -> None:
    """Run the benchmarks; a missed target is reported and is no failure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", default="bench", help="the folder to write (default: bench)")
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes: a check of the benchmarks, no result"
    )
    parser.add_argument(
        "--only", choices=BENCHMARKS, action="append", help="one of the benchmarks; repeatable"
    )
    options = parser.parse_args()
    folder = ResultsFolder(options.out)
    rows = []
    for name in options.only or BENCHMARKS:
        for row in BENCHMARKS[name](options.quick):
            print(f"{row.benchmark}: {row.what}", file=sys.stderr)
            rows.append(row)
    print(markdown(rows), verdict(rows), sep="\n")
    folder.write("bench.md", TEXT.format(table=markdown(rows), verdict=verdict(rows)))
    folder.write("bench.csv", as_csv(rows))
    parameters = {"quick": options.quick, "machine": platform.machine(), "cpus": os.cpu_count()}
    folder.write_run(
        "bench",
        parameters,
        kinds=["measured"],
        packages=["numpy", "polars", "altair", "torch", "transformers", "kvpress"],
    )


if __name__ == "__main__":
    main()
