"""The study against a plain script of the same experiments, which shares no code with it."""

import runpy
from math import isclose, isnan
from pathlib import Path

import pytest

from kvreclaim.study.reproduce import reproduce

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "plain_study.py"


@pytest.mark.parametrize(("seeds", "seed_base"), [(1, 0), (3, 41)])
def test_the_plain_script_gives_the_same_numbers(seeds, seed_base):
    plain = runpy.run_path(str(SCRIPT))["run"](seeds, seed_base)
    experiments = {experiment for experiment, *_ in plain}  # later ones need no second version
    study = {
        (row.experiment, row.policy, row.x, row.metric): (row.mean, row.std, row.n)
        for row in reproduce(seeds, seed_base).rows
        if row.experiment in experiments
        if row.kind == "simulated" or row.experiment.startswith("bound") or row.policy == "naive"
    }
    assert study.keys() == plain.keys()
    different = {key: (study[key], plain[key]) for key in plain if not same(study[key], plain[key])}
    assert not different


def same(a, b):
    """Equal counts; mean and deviation equal up to the rounding of sums, or both undefined."""
    return a[2] == b[2] and all(
        isclose(x, y, rel_tol=1e-9, abs_tol=1e-12) or (isnan(x) and isnan(y))
        for x, y in zip(a[:2], b[:2], strict=True)
    )


def test_the_plain_script_does_without_the_package():
    assert "import kvreclaim" not in SCRIPT.read_text()
    assert "from kvreclaim" not in SCRIPT.read_text()
