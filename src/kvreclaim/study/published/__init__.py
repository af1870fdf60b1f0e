"""Every figure printed in the study's two texts, beside its reproduction.

A figure that the texts repeat stands here once. Parameters (30 seeds, blocks of 16, 512 blocks, 8 a request)
are inputs of the experiments, and claims without a quantity ("intermediate", "favourable") are not figures.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvreclaim.study.published.bound_and_shapes import BOUND_FIGURES, SHAPE_FIGURES
from kvreclaim.study.published.claims import COMPATIBLE, EXACT, NOT_REPRODUCED, WITHIN
from kvreclaim.study.published.compaction_and_admission import ADMISSION_FIGURES, COMPACTION_FIGURES
from kvreclaim.study.published.figure import Figure, Judged, judge
from kvreclaim.study.published.sources import Table
from kvreclaim.study.published.strategies_and_correlation import CORRELATION_FIGURES, STRATEGY_FIGURES
from kvreclaim.study.rows import Row

__all__ = [
    "COMPATIBLE",
    "EXACT",
    "FIGURES",
    "NOT_REPRODUCED",
    "WITHIN",
    "Figure",
    "Judged",
    "judge_all",
]

FIGURES: tuple[Figure, ...] = (
    *BOUND_FIGURES,
    *SHAPE_FIGURES,
    *STRATEGY_FIGURES,
    *CORRELATION_FIGURES,
    *COMPACTION_FIGURES,
    *ADMISSION_FIGURES,
)


def judge_all(rows: Iterable[Row]) -> list[Judged]:
    """Judge every printed figure by the rows of all experiments."""
    table = Table(rows)
    return [judge(figure, table) for figure in FIGURES]
