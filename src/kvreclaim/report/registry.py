"""Which sections a results folder gives, and their order on the page.

To add a part, write ``sections/<part>.py`` with a function ``build(folder) -> Section`` and name it here with
the command whose folders it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvreclaim.errors import InputError
from kvreclaim.report.folder import Folder
from kvreclaim.report.section import Notes, Section
from kvreclaim.report.sections import (
    admission,
    blocks,
    bound,
    compaction,
    correlation,
    masks,
    measured,
    published,
    shapes,
    strategies,
)

Build = Callable[[Folder], Section]

PARTS: tuple[tuple[str, Build], ...] = (
    ("reproduce", blocks.build),
    ("reproduce", bound.build),
    ("reproduce", shapes.build),
    ("reproduce", strategies.build),
    ("reproduce", correlation.build),
    ("reproduce", compaction.build),
    ("reproduce", admission.build),
    ("audit", masks.build),
    ("measure", measured.build),
    ("reproduce", published.build),
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
    known = {command for command, _ in PARTS}
    for folder in folders:
        if folder.command not in known:
            raise InputError(
                f"{folder.path} was written by {folder.command!r}: pass a folder of one of "
                f"{', '.join(sorted(known))}"
            )
    built: list[Section] = []
    for command, build in PARTS:
        of_command = [folder for folder in folders if folder.command == command]
        for place, folder in enumerate(of_command):
            section = build(folder)
            built.append(section if place == 0 else _renamed(section, folder, place + 1))
    return tuple(built)


def _renamed(section: Section, folder: Folder, place: int) -> Section:
    """Return a section of a further folder of one command: ids numbered, the folder's name in its title."""
    items = tuple(
        item if isinstance(item, Notes) else replace(item, id=f"{item.id}-{place}") for item in section.items
    )
    return replace(
        section, id=f"{section.id}-{place}", title=f"{section.title} ({folder.path.name})", items=items
    )
