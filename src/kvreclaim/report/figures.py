"""The static figures of a results folder: SVG and PNG of the same drawings that the page shows."""

from __future__ import annotations

import re
from os import PathLike
from typing import Any

import altair as alt
import vl_convert

from kvreclaim.report.folder import Folder
from kvreclaim.report.registry import sections
from kvreclaim.report.section import Figure
from kvreclaim.report.theme import STATIC
from kvreclaim.results import ResultsFolder

_WIDTH = 640
_PNG_SCALE = 1.25
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def figure_svg(figure: Figure) -> str:
    """Return the SVG of a figure at the first option of each control."""
    specification: dict[str, Any] = figure.default(_WIDTH, STATIC).to_dict(validate=False)
    specification["title"] = {"text": figure.title, "anchor": "start", "fontSize": 15, "offset": 14}
    specification["background"] = STATIC.ink["surface"]
    specification["padding"] = 14
    specification["config"] = dict(STATIC.config)
    return _renumbered(vl_convert.vegalite_to_svg(specification, vl_version=VEGA_LITE))


def _renumbered(svg: str) -> str:
    """Return an SVG with its clip paths numbered from 0: Vega counts them over all charts of a process."""
    numbers: dict[str, int] = {}
    return re.sub(r"\bclip(\d+)\b", lambda found: f"clip{numbers.setdefault(found[1], len(numbers))}", svg)


def write_figures(folder: str | PathLike[str], out: str | PathLike[str]) -> list[str]:
    """Write every figure of a results folder as SVG and PNG.

    Parameters
    ----------
    folder
        A results folder.
    out
        Where the figures go, such as ``figures`` in that folder; files of others there are not touched.

    Returns
    -------
    list of str
        Names of the files written.

    Raises
    ------
    InputError
        When the folder is none of kvreclaim's, or `out` can't be written.
    """
    target = ResultsFolder(out)
    written = []
    for section in sections([Folder(folder)]):
        for figure in section.figures:
            svg = figure_svg(figure)
            target.write(f"{figure.id}.svg", svg)
            target.write(f"{figure.id}.png", vl_convert.svg_to_png(svg, scale=_PNG_SCALE))
            written += [f"{figure.id}.svg", f"{figure.id}.png"]
    return written
