"""The whole study at the published 30 seeds, run once for all tests that look at it."""

from functools import cache

from kvreclaim.study.reproduce import Reproduction, reproduce
from kvreclaim.study.rows import SIMULATED, Row


@cache
def study() -> Reproduction:
    return reproduce()


def row(experiment: str, policy: str, x: float, metric: str, kind: str = SIMULATED) -> Row:
    """Look one row up."""
    return _rows()[experiment, policy, float(x), metric, kind]


@cache
def _rows() -> dict[tuple[str, str, float, str, str], Row]:
    return {(r.experiment, r.policy, r.x, r.metric, r.kind): r for r in study().rows}
