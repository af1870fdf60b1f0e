"""Results folders: every file is whole or not there, and ``run.json`` says where the numbers come from."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import platform
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path, PurePath
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.version import __version__

SCHEMA = 1
# What commands write to a results folder: these and tables, and what lies in these folders of it.
_RESULTS = ("run.json", "interactive_data.json", "audit.json", "advice.json", "index.html")
_SUBFOLDERS = ("cells", "figures", "losses", "masks", "needles")
KINDS = ("closed form", "simulated", "measured", "observed")


def write_bytes(path: str | PathLike[str], data: bytes) -> None:
    """Write a file under a temporary name and rename it, so that it is whole or not there.

    A link stays, and the file behind it is replaced; a pipe or a device is written to as it is.

    Raises
    ------
    InputError
        If the file can't be written.
    """
    file = _named(path)
    try:
        if _replaceable(file):
            _replace(Path(os.path.realpath(file)), data)
        else:
            file.write_bytes(data)
    except OSError as error:
        raise _unwritable(file, error) from error


def check_writable(path: str | PathLike[str]) -> None:
    """Refuse what `write_bytes` is sure to refuse, before long work; nothing is written.

    Raises
    ------
    InputError
        If the path is a directory, its folder does not exist, or one of them is not the user's to write.
    """
    file = _named(path)
    try:
        if file.is_dir():
            raise _failure(errno.EISDIR)
        if not file.parent.is_dir():
            raise _failure(errno.ENOENT)
        if not os.access(file.parent if _replaceable(file) else file, os.W_OK):
            raise _failure(errno.EACCES)
    except OSError as error:
        raise _unwritable(file, error) from error


def as_json(value: Any) -> str:
    """Return JSON text, indented, with NaN and infinities as null, and text as `utf8` gives it."""
    return json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_json_line(value: Any) -> str:
    """Return the same JSON as `as_json` in one line."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False) + "\n"


def utf8(text: str) -> bytes:
    r"""Return text as UTF-8; bytes of a file name that are not Unicode become escapes, such as ``\udcff``."""
    return text.encode(errors="backslashreplace")


def is_results_file(place: PurePath) -> bool:
    """Return whether a path relative to a results folder is of a file that some command writes there."""
    inner = len(place.parts) > 1 and place.parts[0] in _SUBFOLDERS
    table = len(place.parts) == 1 and place.suffix == ".csv"
    return inner or table or str(place) in _RESULTS


class ResultsFolder:
    """A folder that a command writes its files to; files of others in it are not touched.

    Parameters
    ----------
    path
        The folder; made with its first file if it does not exist.

    Raises
    ------
    InputError
        If the folder can't be made, is a file, or has no name.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        if not os.fspath(path):
            raise InputError("the results folder has no name; pass another --out")
        self.path = Path(path)
        self._rows: dict[str, int] = {}
        try:
            nearest = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
            if not nearest.is_dir():
                raise _failure(errno.ENOTDIR)
            if not os.access(nearest, os.W_OK):
                raise _failure(errno.EACCES)
        except OSError as error:
            raise _no_folder(self.path, error) from error

    def claim(self, command: str) -> None:
        """Refuse a folder that holds another command's results, which this one would replace in part.

        Raises
        ------
        InputError
            If its ``run.json`` names another command.
        """
        owner = command
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            owner = json.loads((self.path / "run.json").read_bytes())["command"]
        if owner != command:
            raise InputError(f"{self.path}: holds the results of {owner!r}; pass another --out")

    def write(self, name: str, content: str | bytes) -> Path:
        """Write one file (text as UTF-8) in the folder, replacing it whole; return its path."""
        file = self.place(name)
        write_bytes(file, utf8(content) if isinstance(content, str) else content)
        if file.suffix == ".csv" and isinstance(content, str):
            self._rows[name] = sum(1 for _ in csv.reader(io.StringIO(content))) - 1
        return file

    def place(self, name: str) -> Path:
        """Return the path of a file in the folder, the folder that it lies in made."""
        file = self.path / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _no_folder(file.parent, error) from error
        return file

    def write_run(
        self, command: str, parameters: Mapping[str, Any], kinds: Sequence[str], packages: Sequence[str]
    ) -> None:
        """Write ``run.json``: schema, command, parameters, kinds of the numbers, versions, date, and rows.

        The rows are those of the tables written to this folder so far, by name: who reads one sees whether it
        is whole.
        """
        run = _run(command, parameters, kinds, packages)
        self.write("run.json", as_json({**run, "rows": self._rows} if self._rows else run))

    def count_rows(self) -> None:
        """Add to a ``run.json`` that was written before the work the rows of the tables written since."""
        run = json.loads((self.path / "run.json").read_bytes())
        self.write("run.json", as_json({**run, "rows": {**run.get("rows", {}), **self._rows}}))

    def begin_run(
        self,
        command: str,
        parameters: Mapping[str, Any],
        kinds: Sequence[str],
        packages: Sequence[str],
        replaceable: Collection[str] = (),
    ) -> None:
        """Write ``run.json`` before the work, or find the one of the same run, begun before.

        ``replaceable`` names the parameters that no result there depends on: the ones given now replace those
        that it was begun with.

        Raises
        ------
        InputError
            If the folder holds a run of another command, or with other parameters or versions.
        """
        self.claim(command)
        run = json.loads(as_json(_run(command, parameters, kinds, packages)))
        try:
            begun = json.loads((self.path / "run.json").read_bytes())
            kept = {name: begun["parameters"].get(name) for name in replaceable}
            for part, now in (
                ("parameters", {**run["parameters"], **kept}),
                ("versions", run["versions"]),
            ):
                if differing := _differing(begun[part], now):
                    raise InputError(f"{self.path}: was begun with {differing}; pass another --out")
            if _differing(begun["parameters"], run["parameters"]):
                self.write("run.json", as_json({**begun, "parameters": run["parameters"]}))
        except FileNotFoundError:
            self.write("run.json", as_json(run))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.path}: its run.json can't be read; pass another --out") from error


def as_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV text under a line of column names; None is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _run(
    command: str, parameters: Mapping[str, Any], kinds: Sequence[str], packages: Sequence[str]
) -> dict[str, Any]:
    unknown = set(kinds) - set(KINDS)
    if unknown:
        raise ValueError(f"kinds of numbers are {KINDS}, got {unknown}")
    return {
        "schema": SCHEMA,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "parameters": dict(parameters),
        "kinds": list(kinds),
        "versions": {
            "kvreclaim": __version__,
            "python": platform.python_version(),
            **_versions(packages),
        },
    }


def _differing(begun: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in words the first value that a run was begun with and that is another now."""
    for name in (*now, *begun):
        old, new = begun.get(name), now.get(name)
        if old != new:
            words = name.replace("_", " ")
            return f"other {words}" if isinstance(old, list | dict) else f"{words} {old}, this is {new}"
    return ""


def _named(path: str | PathLike[str]) -> Path:
    if not os.fspath(path):
        raise InputError("'' can't be written (it names no file); pass a file in a folder you can write")
    return Path(path)


def _replaceable(file: Path) -> bool:
    """Return whether the file is a regular one, or is not there yet."""
    return file.is_file() or not file.exists()


def _replace(file: Path, data: bytes) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(file)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _failure(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def _no_folder(folder: Path, error: OSError) -> InputError:
    return InputError(f"{folder}: can't be made a folder ({error.strerror}); pass another --out")


def _unwritable(file: Path, error: OSError) -> InputError:
    return InputError(f"{file}: can't be written ({error.strerror}); pass a file in a folder you can write")


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _plain(value: Any) -> Any:
    """Return the value as every reader of JSON takes it: without NaN, infinities and half characters."""
    if isinstance(value, str):
        return value if value.isascii() else utf8(value).decode()
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
