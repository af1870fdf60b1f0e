"""Names beside the points of a chart, where they cover neither each other nor another point."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import altair as alt

from kvreclaim.report.charts.plot import TEXT

_CHARACTER, _LINE, _POINT = 6.2, 13.0, 7.0  # pixels: of a name's font, and half of a point with its ring
_STEPS = 40  # of a line's part, each looked at as a small box
_NARROW = 270.0  # a plot on a phone; what is free there is free on wider ones
Align = Literal["left", "center", "right"]
Box = tuple[float, float, float, float]
Place = tuple[float, float]


class Side(NamedTuple):
    """Where a name stands beside its point, in pixels, and which end of it."""

    dx: float
    dy: float
    align: Align


SIDES = {
    "right": Side(13, 0, "left"),
    "left": Side(-13, 0, "right"),
    "below": Side(0, 17, "center"),
    "above": Side(0, -17, "center"),
    "below right": Side(6, 16, "left"),
    "above right": Side(6, -16, "left"),
    "below left": Side(-6, 16, "right"),
    "above left": Side(-6, -16, "right"),
}


def sides(
    places: Sequence[Place], names: Sequence[str], height: int, line: Sequence[Place] = ()
) -> list[str]:
    """Return the side on which each point's name is free of all else, those first in the order placed first.

    Parameters
    ----------
    places
        Points as shares of the plot's width and height, from its left and its top.
    names
        Their names.
    height
        Of the plot, in pixels.
    line
        Corners of a line to keep clear of, as the points.

    Returns
    -------
    list[str]
        Keys of `SIDES`; empty for a name that is free on no side: the legend and a pointer still say it.
    """
    points = [(_NARROW * x, height * y) for x, y in places]
    taken = [_around(x, y, _POINT) for x, y in points]
    for start, end in pairwise(line):
        steps = [step / _STEPS for step in range(1, _STEPS)]
        along = [tuple(a + share * (b - a) for a, b in zip(start, end, strict=True)) for share in steps]
        taken += [_around(_NARROW * x, height * y, 1.0) for x, y in along]
    found = []
    for (x, y), name in zip(points, names, strict=True):
        free = (side for side in SIDES if _free(_box(x, y, name, SIDES[side]), taken, height))
        found.append(side := next(free, ""))
        if side:
            taken.append(_box(x, y, name, SIDES[side]))
    return found


def layers(base: alt.Chart, used: Sequence[str]) -> list[alt.Chart]:
    """Return the layers that write the names of rows with a column side."""
    return [
        base.mark_text(
            dx=side.dx, dy=side.dy, align=side.align, baseline="middle", fontSize=11, color=TEXT, aria=False
        )
        .encode(text="label:N")
        .transform_filter(f"datum.side == '{name}'")
        for name, side in SIDES.items()
        if name in used
    ]


def _around(x: float, y: float, half: float) -> Box:
    return x - half, y - half, x + half, y + half


def _box(x: float, y: float, name: str, side: Side) -> Box:
    wide = _CHARACTER * len(name)
    left = x + side.dx - {"left": 0.0, "center": wide / 2, "right": wide}[side.align]
    return left, y + side.dy - _LINE / 2, left + wide, y + side.dy + _LINE / 2


def _free(box: Box, taken: Sequence[Box], height: int) -> bool:
    left, top, right, bottom = box
    inside = left >= 0 and top >= 0 and right <= _NARROW and bottom <= height
    return inside and not any(
        left < other[2] and other[0] < right and top < other[3] and other[1] < bottom for other in taken
    )
