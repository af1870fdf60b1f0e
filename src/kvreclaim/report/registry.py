"""Which sections a results folder gives, and their order on the page.

To add a part, write ``sections/<part>.py`` with a function ``build(folder) -> Section`` and name it here with
the command whose folders it reads, and the experiments without which a folder has no such section.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import Figure, Item, Notes, Section
from kvreclaim.report.sections import (
    admission,
    advice,
    blocks,
    bound,
    compaction,
    correlation,
    masks,
    matched_runs,
    measured,
    observed,
    pages,
    published,
    shapes,
    strategies,
    traffic,
)
from kvreclaim.report.summary import Summary

Result = TypeVar("Result")
_OF_DATA = (
    pl.exceptions.PolarsError,
    ArithmeticError,
    AttributeError,
    LookupError,
    StopIteration,
    TypeError,
    ValueError,
)
Build = Callable[[Folder], Section]


@dataclass(frozen=True)
class Part:
    """A section: the command whose folders it reads, its function, and what it needs of such a folder.

    That is experiments, a file, and a parameter of the run that is set.
    """

    command: str
    build: Build
    experiments: tuple[str, ...] = ()
    file: str = ""
    parameter: str = ""

    def reads(self, folder: Folder) -> bool:
        """Tell whether a folder is of this part's command and has its experiments."""
        if folder.command != self.command or not (folder.path / self.file).exists():
            return False
        if self.parameter and not folder.run.get("parameters", {}).get(self.parameter):
            return False
        return not self.experiments or set(self.experiments) <= Summary.of(folder).experiments

    def section(self, folder: Folder) -> Section:
        """Build the section; whatever the folder's data make fail, now or when drawn, is an `InputError`."""
        section = _told(folder, self.build, folder)
        items = tuple(_guarded(item, folder) for item in section.items)
        return replace(section, items=items)


PARTS: tuple[Part, ...] = (
    Part("observe", matched_runs.build, parameter="at_matched_quality"),
    Part("reproduce", blocks.build),
    Part("reproduce", bound.build, bound.EXPERIMENTS),
    Part("reproduce", shapes.build, shapes.EXPERIMENTS),
    Part("reproduce", strategies.build, strategies.EXPERIMENTS),
    Part("reproduce", correlation.build, correlation.EXPERIMENTS),
    Part("reproduce", compaction.build, compaction.EXPERIMENTS),
    Part("reproduce", admission.build, admission.EXPERIMENTS),
    Part("audit", masks.build),
    Part("audit", pages.build, file=pages.FILE),
    Part("measure", measured.build),
    Part("observe", observed.build),
    Part("simulate", traffic.build),
    Part("plan", traffic.build),
    Part("advise", advice.build),
    Part("reproduce", published.build),
)


def sections(folders: Sequence[Folder]) -> tuple[Section, ...]:
    """Return the sections of all folders, in the order of `PARTS`, with ids that are unique.

    Raises
    ------
    InputError
        When no folder is given, or one was written by a command that has no section.
    """
    if not folders:
        raise InputError(
            "no results folder is given: pass at least one, as `kvreclaim reproduce --out DIR` writes it"
        )
    known = {part.command for part in PARTS}
    for folder in folders:
        if folder.command not in known:
            raise InputError(
                f"{folder.path} was written by {folder.command!r}: pass a folder of one of "
                f"{', '.join(sorted(known))}"
            )
    built = [(part.section(folder), folder) for part in PARTS for folder in folders if part.reads(folder)]
    ids = [section.id for section, _ in built]
    return tuple(
        section
        if ids.count(section.id) == 1
        else _told_apart(section, folder, ids[: place + 1].count(section.id))
        for place, (section, folder) in enumerate(built)
    )


def _guarded(item: Item, folder: Folder) -> Item:
    """Return an item; if a figure, one whose drawings name the folder where its data can't be drawn."""
    if not isinstance(item, Figure):
        return item
    drawings = {values: partial(_told, folder, drawing) for values, drawing in item.drawings.items()}
    return replace(item, drawings=drawings)


def _told(folder: Folder, function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a function makes of a folder's data.

    Tables can contradict themselves and each other in more ways than checks can name; so this one boundary
    turns the errors that data cause into a line about the folder.
    """
    try:
        return function(*arguments)
    except InputError:
        raise
    except _OF_DATA as error:
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"{folder.path}: its tables don't fit together ({type(error).__name__}: {reason}); "
            f"run `kvreclaim {folder.command}` again"
        ) from error


def _told_apart(section: Section, folder: Folder, place: int) -> Section:
    """Return one of several sections of a kind: its title names the folder, ids are numbered."""
    named = replace(section, title=f"{section.title} ({folder.path.resolve().name})")
    if place == 1:
        return named
    items = tuple(
        item if isinstance(item, Notes) else replace(item, id=f"{item.id}-{place}") for item in section.items
    )
    return replace(named, id=f"{section.id}-{place}", items=items)
