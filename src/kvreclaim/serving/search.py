"""A deterministic search for the minimum of a function that is not smooth: Nelder and Mead's simplex."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Point = NDArray[np.float64]


def minimise(
    function: Callable[[Point], float], start: Point, size: float, steps: int
) -> tuple[Point, float]:
    """Return the best point found and its value.

    Nelder and Mead, A Simplex Method for Function Minimization, The Computer Journal 7 (1965): reflection 1,
    expansion 2, contraction and shrinkage 1/2.

    Parameters
    ----------
    function
        What to minimise.
    start
        Where to begin, ``[dimensions]``.
    size
        Length of the first simplex's edges along the axes.
    steps
        Moves of the simplex.
    """
    points = [start, *(start + size * axis for axis in np.eye(start.size))]
    simplex = sorted(((function(point), point) for point in points), key=_value)
    for _ in range(steps):
        worst, inner = simplex[-1], np.mean([point for _, point in simplex[:-1]], axis=0)
        away = inner - worst[1]
        move = _tried(function, inner + away)
        if move[0] < simplex[0][0]:
            move = min(move, _tried(function, inner + 2 * away), key=_value)
        elif move[0] >= simplex[-2][0]:
            move = _tried(function, inner - away / 2)
        if move[0] < worst[0]:
            simplex[-1] = move
        else:
            best = simplex[0][1]
            simplex[1:] = [_tried(function, best + (point - best) / 2) for _, point in simplex[1:]]
        simplex.sort(key=_value)
    value, point = simplex[0]
    return point, value


def _tried(function: Callable[[Point], float], point: Point) -> tuple[float, Point]:
    return function(point), point


def _value(tried: tuple[float, Point]) -> float:
    return tried[0]
