"""What a command writes lies apart from what it reads and from its own results, or nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from os.path import realpath
from pathlib import Path
from typing import Any

from kvreclaim.cli.output import STDOUT
from kvreclaim.errors import InputError
from kvreclaim.results import is_results_file

# The parameters of commands by what they name; a command has some of them.
_READ = ("files", "folders", "texts", "model", "trace", "file", "masks", "measured", "step_time")
_WRITTEN = ("json", "page")
_FOLDER = "out"


def apart(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that first refuses outputs which would replace its inputs or its own results."""

    @wraps(command)
    def checked(**arguments: Any) -> None:
        read = [path for name in _READ for path in _listed(arguments.get(name)) if _exists(path)]
        folder = arguments.get(_FOLDER)
        for file in (arguments.get(name) for name in _WRITTEN):
            if file not in (None, STDOUT):
                _check_file(file, read, folder)
        if folder is not None:
            _check_folder(folder, read)
        command(**arguments)

    return checked


def _listed(value: str | Iterable[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _exists(path: str) -> bool:
    with suppress(OSError):  # such as a name that is too long
        return Path(path).exists()
    return False


def _check_file(file: str, read: Iterable[str], folder: str | None) -> None:
    """Refuse a file that is read, lies in a folder read (a page may), or is among the results."""
    for path in read:
        place = _place(file, path)
        if place is None:
            continue
        of_folder = place.suffix != ".html" and (_exists(file) or is_results_file(place))
        if not place.parts or of_folder:
            raise InputError(f"{file}: is what this command reads ({path}); pass another file to write")
    if folder is None:
        return
    place = _place(file, folder)
    if _place(folder, file) is not None or (place is not None and is_results_file(place)):
        raise InputError(f"{file}: would replace what goes to --out {folder}; pass another file to write")


def _check_folder(folder: str, read: Iterable[str]) -> None:
    """Refuse a results folder whose tables would replace a file that is read."""
    for path in read:
        place = _place(path, folder)
        if place is not None and len(place.parts) == 1 and is_results_file(place):
            raise InputError(f"{folder}: the results would replace {path}, which is read; pass another --out")


def _place(file: str, folder: str) -> Path | None:
    """Return the place of a file in a folder, links followed, of no parts if they are the same; else None."""
    there, inside = Path(realpath(folder)), Path(realpath(file))
    return inside.relative_to(there) if inside.is_relative_to(there) else None
