"""Results folders: every file is whole or not there, and ``run.json`` says where the numbers come from."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.version import __version__

SCHEMA = 1
KINDS = ("closed form", "simulated", "measured", "observed")


def write_bytes(path: str | PathLike[str], data: bytes) -> None:
    """Write a file under a temporary name and rename it, so that it is whole or not there.

    Raises
    ------
    InputError
        If the file can't be written.
    """
    file = Path(path)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(file)
    except OSError as error:
        raise InputError(
            f"{file}: can't be written ({error.strerror}); pass a file in a folder you can write"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def as_json(value: Any) -> str:
    """Return JSON text, indented, with NaN and infinities as null."""
    return json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


class ResultsFolder:
    """A folder that a command writes its files to; files of others in it are not touched.

    Parameters
    ----------
    path
        The folder; made if it does not exist.

    Raises
    ------
    InputError
        If the folder can't be made, or is a file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{self.path}: can't be made a folder ({error.strerror}); pass another --out"
            ) from error

    def write(self, name: str, content: str | bytes) -> Path:
        """Write one file (text as UTF-8) in the folder, replacing it whole; return its path."""
        file = self.path / name
        ResultsFolder(file.parent)
        write_bytes(file, content.encode() if isinstance(content, str) else content)
        return file

    def write_run(
        self, command: str, parameters: Mapping[str, Any], kinds: Sequence[str], packages: Sequence[str]
    ) -> None:
        """Write ``run.json``: schema, command, parameters, kinds of the numbers, versions and date."""
        unknown = set(kinds) - set(KINDS)
        if unknown:
            raise ValueError(f"kinds of numbers are {KINDS}, got {unknown}")
        run = {
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
        self.write("run.json", as_json(run))


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _finite(value: Any) -> Any:
    """Return the value with NaN and infinities replaced by None, through mappings and sequences."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
