"""Colours that all readers can tell apart, on light and on dark."""

from __future__ import annotations

from itertools import combinations

import advice_tables
import measured_tables
import numpy as np
import observed_tables
import pytest
import report_tables

from kvreclaim.report.folder import Folder
from kvreclaim.report.registry import sections
from kvreclaim.report.section import Figure
from kvreclaim.report.theme import DARK, LIGHT, SERIES, Theme


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> list[Figure]:
    folder = tmp_path_factory.mktemp("folders")
    written = [
        report_tables.write_study(folder / "study"),
        report_tables.write_audit(folder / "audit"),
        advice_tables.write_advice(folder / "advice"),
        measured_tables.write_measured(folder / "measured"),
        observed_tables.write_observed(folder / "observed"),
    ]
    return [figure for section in sections([Folder(one) for one in written]) for figure in section.figures]


def _linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def _luminance(colour: str) -> float:
    return float(_linear(colour) @ np.array([0.2126, 0.7152, 0.0722]))


# Machado, Oliveira and Fernandes (2009), full deficiency, on linear RGB.
_DEFICIENCIES = {
    "none": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}


def _oklab(linear: np.ndarray) -> np.ndarray:
    """Ottosson's OKLab of linear RGB."""
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    opponents = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return np.asarray(opponents @ np.cbrt(cones @ np.clip(linear, 0, 1)))


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_series_stand_out_from_the_background(theme: Theme) -> None:
    ground = _luminance(theme.ink["surface"])
    for key in SERIES:
        low, high = sorted((_luminance(theme.ink[key]), ground))
        assert (high + 0.05) / (low + 0.05) >= 3, key


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_series_of_one_chart_stay_apart_for_colour_blind_readers(figures: list[Figure], theme: Theme) -> None:
    for found in figures:
        for one, other in combinations(found.series, 2):
            if SERIES[one].dash != SERIES[other].dash:
                continue  # lines of other dashes are told apart without their colours
            for matrix in _DEFICIENCIES.values():
                seen = [_oklab(np.asarray(matrix) @ _linear(theme.ink[key])) for key in (one, other)]
                assert np.linalg.norm(seen[0] - seen[1]) >= 0.08, (found.id, one, other)
