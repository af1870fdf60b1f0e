"""The value types that sections are made of: what a page shows, free of how it is shown.

A section holds prose and items in reading order. A figure holds *drawings*, not charts: functions of width
and theme, so that one definition gives the static figure and the page's chart, and only what is needed is
drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import altair as alt

from kvreclaim.report.theme import Theme

Width = int | Literal["container"]
Drawing = Callable[[Width, Theme], alt.LayerChart]


@dataclass(frozen=True)
class Control:
    """A group of buttons, one of which is pressed; figures of a section that name the same id move together.

    Parameters
    ----------
    id
        Name of the control within its section.
    label
        What the group chooses, in words.
    options
        ``(value, label)`` pairs; the first is pressed at the start.
    """

    id: str
    label: str
    options: tuple[tuple[str, str], ...]

    @property
    def values(self) -> tuple[str, ...]:
        """The values, in order."""
        return tuple(value for value, _ in self.options)


@dataclass(frozen=True)
class Figure:
    """A chart with its words: one drawing for every combination of its controls' values.

    Parameters
    ----------
    id
        Name of the figure, unique on the page, and of the static figure's files.
    title, caption
        What the figure shows, as a headline and in a sentence or two.
    drawings
        From a tuple of control values (in the order of `controls`) to a drawing.
    controls
        The groups of buttons that choose the drawing.
    series
        Keys of the legend's entries, for `theme.look`.
    spread
        What the spread of its numbers is, after the sign that marks it in their texts; kinds, counts and
        whether there is a spread are read off the rows drawn.
    wide
        Whether the figure takes the page's whole width.

    Raises
    ------
    ValueError
        When a combination of control values has no drawing, or a drawing no combination.
    """

    id: str
    title: str
    caption: str
    drawings: Mapping[tuple[str, ...], Drawing]
    controls: tuple[Control, ...] = ()
    series: tuple[str, ...] = ()
    spread: str = "± population standard deviation"
    wide: bool = False

    def __post_init__(self) -> None:
        expected = set(product(*(control.values for control in self.controls)))
        if set(self.drawings) != expected:
            raise ValueError(
                f"figure {self.id}: drawings {sorted(self.drawings)} for controls {sorted(expected)}"
            )

    @property
    def default(self) -> Drawing:
        """The drawing of the first option of every control: the static figure."""
        return self.drawings[tuple(control.values[0] for control in self.controls)]


@dataclass(frozen=True)
class BlockMaps:
    """Block maps, each with frames over the eviction ratio, under one set of buttons.

    Parameters
    ----------
    id, title, caption
        As of a `Figure`.
    maps
        One a policy; where there are views, each policy's maps in the order of the views, each naming its own
        under ``view``.
    views
        What else chooses a map, such as a layer and head.

    Raises
    ------
    ValueError
        When a policy does not have every view.
    """

    id: str
    title: str
    caption: str
    maps: tuple[Mapping[str, Any], ...]
    views: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.views and len(self.maps) % len(self.views):
            raise ValueError(f"block maps {self.id}: {len(self.maps)} maps for {len(self.views)} views each")


@dataclass(frozen=True)
class Table:
    """A table of texts; `tones` colours a row's last cell ("good", "fair", "bad" or "").

    A long table is `folded`: shown when asked for.
    """

    id: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    tones: tuple[str, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Notes:
    """Remarks that stand beside the figures they touch."""

    title: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class KeyNumber:
    """A number for the head of the page, with what it is, its kind and its count."""

    value: str
    label: str
    evidence: str


Item = Figure | BlockMaps | Table | Notes


@dataclass(frozen=True)
class Section:
    """A part of the page: title, paragraphs, then items in reading order.

    `key_numbers` go to the head of the page; `sources` are keys of `references.REFERENCES`; `provenance`
    says when and with which versions the numbers were made.
    """

    id: str
    title: str
    prose: tuple[str, ...]
    items: tuple[Item, ...]
    key_numbers: tuple[KeyNumber, ...] = ()
    sources: tuple[str, ...] = field(default=())
    provenance: str = ""

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figures among the items."""
        return tuple(item for item in self.items if isinstance(item, Figure))
