"""The whole reproduction, from the command line, beside a plain script of the same experiments."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import plain_study
from benchmarks.table import Row
from benchmarks.timing import estimate, in_turn
from kvreclaim.study.reproduce import reproduce

SEEDS = 30
JOBS = 2
RUNS = 3

Numbers = dict[tuple[str, str, float, str], tuple[float, float, int]]


def run(quick: bool) -> Iterator[Row]:
    """Yield the rows; ``quick`` takes a tenth of the seeds."""
    seeds = SEEDS // 10 if quick else SEEDS
    found: list[Numbers] = []
    with TemporaryDirectory() as folder:
        contenders = [
            partial(_reproduce, folder, seeds),
            partial(reproduce, seeds),
            lambda: found.append(plain_study.run(seeds)),
        ]
        whole, simulation, plain = in_turn(contenders, RUNS)
        _check(_summary(Path(folder)), found[-1])
    name = f"reproduce, {seeds} seeds"
    yield Row(
        name, f"time of the command, all figures and the page, {JOBS} jobs", "s", estimate(whole), below=15
    )
    yield Row(name, "time of the simulation alone, 1 process", "s", estimate(simulation))
    yield Row(name, "time of the plain NumPy script, the same numbers, 1 process", "s", estimate(plain))


def _reproduce(folder: str, seeds: int) -> None:
    command = Path(sys.executable).with_name("kvreclaim")
    options = ["--out", folder, "--seeds", str(seeds), "--jobs", str(JOBS)]
    subprocess.run([command, "reproduce", *options], check=True, capture_output=True)  # noqa: S603 (our own)


def _summary(folder: Path) -> Numbers:
    """Read the simulated rows, and the closed forms of experiments that simulate nothing."""
    with (folder / "results_summary.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        (row["experiment"], row["policy"], float(row["x"]), row["metric"]): (
            float(row["mean"] or "nan"),
            float(row["std"] or "nan"),
            int(row["n"]),
        )
        for row in rows
        if row["kind"] == "simulated" or row["experiment"].startswith("bound") or row["policy"] == "naive"
    }


def _check(found: Numbers, plain: Numbers) -> None:
    """Raise AssertionError unless both hold the plain script's numbers, up to the rounding of sums."""
    experiments = {experiment for experiment, *_ in plain}
    found = {key: numbers for key, numbers in found.items() if key[0] in experiments}
    assert found.keys() == plain.keys(), found.keys() ^ plain.keys()
    for key, (mean, std, n) in plain.items():
        assert same(found[key], (mean, std, n)), f"{key}: {found[key]}, the plain script says {mean, std, n}"


def same(a: tuple[float, float, int], b: tuple[float, float, int]) -> bool:
    """Say whether mean and deviation are the same up to the rounding of sums, and the counts equal."""
    return a[2] == b[2] and all(
        isclose(x, y, rel_tol=1e-9, abs_tol=1e-12) or (x != x and y != y)
        for x, y in zip(a[:2], b[:2], strict=True)
    )
