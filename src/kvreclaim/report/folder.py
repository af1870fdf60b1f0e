"""Reading a results folder: its tables by name, its `run.json`, its block maps; anything alien is refused."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.report.checks import check_block_map, check_run, cut_short, fault_of, parse
from kvreclaim.report.columns import schema

SCHEMA = 1


class Folder:
    """A results folder that a kvreclaim command wrote; files are read when asked for.

    Parameters
    ----------
    path
        The folder.

    Raises
    ------
    InputError
        When the folder is missing, is a file, or holds no readable ``run.json``.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            state = "is a file" if self.path.exists() else "does not exist"
            raise InputError(
                f"{self.path} {state}: pass a results folder, as `kvreclaim reproduce --out DIR` writes it"
            )
        self.run = self._read_run()

    @property
    def command(self) -> str:
        """The command that wrote the folder, such as ``reproduce``."""
        return str(self.run["command"])

    def made(self, how: str) -> str:
        """Return when the numbers were made, and with which versions: ``Measured on 2026-03-04 with ...``."""
        date = str(self.run.get("created", "")).partition("T")[0]
        versions = ", ".join(f"{name} {version}" for name, version in self.run.get("versions", {}).items())
        return f"{how}{f' on {date}' if date else ''}{f' with {versions}' if versions else ''}"

    def table(self, name: str) -> pl.DataFrame:
        """Return a CSV table of the folder.

        Parameters
        ----------
        name
            File name, one of `COLUMNS`.

        Raises
        ------
        InputError
            When the file is missing, is not a table, was cut, lacks a column or a value, or holds one that
            can't be.
        """
        file = self.path / name
        try:
            # As bytes: Polars takes no path that is not Unicode, and reads stars in one as a pattern.
            content = file.read_bytes()
            table = pl.read_csv(
                content, null_values=["", "NaN"], infer_schema_length=None, schema_overrides=schema(name)
            )
        except (OSError, csv.Error, pl.exceptions.PolarsError) as error:
            raise InputError(self._unreadable(file, error)) from error
        if fault := cut_short(content) or fault_of(name, table) or self._cut(name, table):
            raise InputError(f"{file} {fault}: pass a folder that this version of kvreclaim wrote, whole")
        return table

    def _cut(self, name: str, table: pl.DataFrame) -> str | None:
        """Return what a table lacks of the rows that were written, in words; None where that is not known."""
        written = self.run.get("rows", {}).get(name, table.height)
        return None if table.height == written else f"has {table.height} rows, and {written} were written"

    def table_if_any(self, name: str) -> pl.DataFrame:
        """Return a CSV table as `table` does, or one without rows where the folder has no such file."""
        return self.table(name) if (self.path / name).exists() else pl.DataFrame(schema=schema(name))

    @cached_property
    def interactive(self) -> dict[str, Any]:
        """The object in ``interactive_data.json``.

        Raises
        ------
        InputError
            When the file is missing or is not such an object.
        """
        return self._read_json("interactive_data.json")

    @cached_property
    def advice(self) -> dict[str, Any]:
        """The object in ``advice.json``.

        Raises
        ------
        InputError
            When the file is missing or is not such an object.
        """
        return self._read_json("advice.json")

    @cached_property
    def block_maps(self) -> tuple[dict[str, Any], ...]:
        """The folder's block maps, checked: masks as long as they say, moves inside their block map.

        Raises
        ------
        InputError
            When a block map is not one.
        """
        maps = self.interactive.get("block_maps", [])
        try:
            for block_map in maps:
                check_block_map(block_map)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            file = self.path / "interactive_data.json"
            raise InputError(
                f"{file} holds a block map that can't be drawn ({error}): run the command again"
            ) from error
        return tuple(maps)

    def faults(self, section: str) -> tuple[str, ...]:
        """Return the remarks on the published study that belong to a section."""
        listed: Sequence[Mapping[str, str]] = self.interactive.get("faults", [])
        try:
            return tuple(str(fault["text"]) for fault in listed if fault["section"] == section)
        except (LookupError, TypeError, AttributeError) as error:
            file = self.path / "interactive_data.json"
            raise InputError(f"{file} holds a fault without text: run the command again") from error

    def _read_run(self) -> dict[str, Any]:
        run = self._read_json("run.json")
        try:
            known = run.get("schema") == SCHEMA and "command" in run
            check_run(run)
        except ValueError:
            known = False
        if not known:
            raise InputError(
                f"{self.path / 'run.json'} is not of schema {SCHEMA}: pass a folder that this version of "
                "kvreclaim wrote"
            )
        return run

    def _read_json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            value = parse(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(self._unreadable(file, error)) from error
        if not isinstance(value, dict):
            raise InputError(f"{file} holds no JSON object: pass a folder that kvreclaim wrote")
        return value

    @staticmethod
    def _unreadable(file: Path, error: Exception) -> str:
        if not file.exists():
            return f"{file.parent} holds no {file.name}: pass a results folder that kvreclaim wrote"
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        return f"{file} can't be read ({first_line}): pass a results folder that kvreclaim wrote"
