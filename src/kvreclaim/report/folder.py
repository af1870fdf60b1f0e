"""Reading a results folder: its tables by name, its `run.json`, its block maps; anything alien is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.report.checks import check_block_map, check_run, fault_of, parse

SCHEMA = 1

# The columns without which a table is not what its name says. Texts stay texts: ".50" is not a number here.
COLUMNS: Mapping[str, Mapping[str, type[pl.DataType]]] = {
    "results_summary.csv": {
        "experiment": pl.String,
        "policy": pl.String,
        "x_name": pl.String,
        "x": pl.Float64,
        "metric": pl.String,
        "kind": pl.String,
        "mean": pl.Float64,
        "std": pl.Float64,
        "n": pl.Int64,
    },
    "published.csv": {
        "id": pl.String,
        "quantity": pl.String,
        "published": pl.String,
        "reproduced": pl.Float64,
        "std": pl.Float64,
        "n": pl.Int64,
        "oracle": pl.Float64,
        "tolerance": pl.Float64,
        "status": pl.String,
    },
    "audit.csv": {
        "file": pl.String,
        "policy": pl.String,
        "model": pl.String,
        "ratio": pl.Float64,
        "layers": pl.Int64,
        "kv_heads": pl.Int64,
        "tokens": pl.Int64,
        "block_size": pl.Int64,
        "block_tables": pl.String,
        "blocks": pl.Int64,
        "free_blocks": pl.Int64,
        "logical_saving": pl.Float64,
        "physical_reclaim": pl.Float64,
        "stranded": pl.Float64,
        "live_union": pl.Float64,
        "compaction_freed_blocks": pl.Int64,
        "packing_physical_reclaim": pl.Float64,
        "packing_moved_pairs": pl.Int64,
    },
    "measured.csv": {
        "model": pl.String,
        "prompt": pl.String,
        "policy": pl.String,
        "ratio": pl.Float64,
        "retained": pl.Float64,
        "tokens": pl.Int64,
        "block_size": pl.Int64,
        "block_tables": pl.String,
        "physical_reclaim": pl.Float64,
        "reclaim_efficiency": pl.Float64,
        "fragmentation": pl.Float64,
        "stranded": pl.Float64,
        "packing_reclaim": pl.Float64,
        "packing_moved_pairs": pl.Int64,
        "kl": pl.Float64,
        "delta_nll": pl.Float64,
        "top1": pl.Float64,
    },
    "matched.csv": {
        "policy": pl.String,
        "target_kl": pl.Float64,
        "ratio": pl.Float64,
        "retained": pl.Float64,
        "block_tables": pl.String,
        "remedy": pl.String,
        "physical_reclaim": pl.Float64,
        "low": pl.Float64,
        "high": pl.Float64,
        "moved_bytes": pl.Float64,
        "admitted": pl.Float64,
        "reached": pl.Int64,
        "below": pl.Int64,
        "above": pl.Int64,
    },
    "matched_prompts.csv": {
        "prompt": pl.String,
        "policy": pl.String,
        "target_kl": pl.Float64,
        "kl": pl.Float64,
        "reached": pl.String,
    },
    "needles.csv": {
        "task": pl.String,
        "question_seen": pl.Boolean,
        "policy": pl.String,
        "ratio": pl.Float64,
        "trials": pl.Int64,
        "full_solved": pl.Int64,
        "solved": pl.Int64,
        "share": pl.Float64,
        "low": pl.Float64,
        "high": pl.Float64,
        "retained": pl.Float64,
        "needle_retained": pl.Float64,
    },
    "advice.csv": {
        "candidate": pl.String,
        "policy": pl.String,
        "parameters": pl.String,
        "ratio": pl.Float64,
        "block_tables": pl.String,
        "physical_reclaim": pl.Float64,
        "moved_fraction": pl.Float64,
        "kl": pl.Float64,
        "kl_ratio_to_snapkv": pl.Float64,
        "top1": pl.Float64,
        "needle": pl.Float64,
        "loss": pl.Float64,
        "admitted": pl.Int64,
        "gib": pl.Float64,
        "pareto": pl.Boolean,
        "recommended": pl.Boolean,
    },
}


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

    def table(self, name: str) -> pl.DataFrame:
        """Return a CSV table of the folder.

        Parameters
        ----------
        name
            File name, one of `COLUMNS`.

        Raises
        ------
        InputError
            When the file is missing, is not a table, or lacks a column or a value.
        """
        file = self.path / name
        types = COLUMNS[name]
        try:
            # As bytes: Polars takes no path that is not Unicode, and reads stars in one as a pattern.
            content = file.read_bytes()
            table = pl.read_csv(
                content, null_values=["", "NaN"], infer_schema_length=None, schema_overrides=dict(types)
            )
        except (OSError, pl.exceptions.PolarsError) as error:
            raise InputError(self._unreadable(file, error)) from error
        if fault := fault_of(name, table, types):
            raise InputError(f"{file} {fault}: pass a folder that this version of kvreclaim wrote, whole")
        return table

    def table_if_any(self, name: str) -> pl.DataFrame:
        """Return a CSV table as `table` does, or one without rows where the folder has no such file."""
        return self.table(name) if (self.path / name).exists() else pl.DataFrame(schema=dict(COLUMNS[name]))

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
