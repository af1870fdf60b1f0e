"""Cells: one prompt, policy and ratio, with the mask and what it costs; each saved once it is done.

A cell is a keep-mask file and, written after it, a JSON file with its quality: it is there if both are.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kvreclaim.capture.quality import Quality
from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask
from kvreclaim.results import ResultsFolder, as_json

MATCHED = "matched"
CELLS, MASKS = "cells", "masks"


@dataclass(frozen=True)
class Cell:
    """One policy on one prompt at one ratio.

    Parameters
    ----------
    prompt, policy
        Names.
    ratio
        Compression ratio; 0 keeps everything.
    stage
        ``ratio-0.5`` or the like in the sweep; ``matched`` at matched quality.
    """

    prompt: str
    policy: str
    ratio: float
    stage: str

    @property
    def path(self) -> str:
        """Where its files lie in their folders, without their ending."""
        return f"{self.prompt}/{self.stage}/{quote(self.policy.replace(':', '+'), safe='+=,')}"


def sweep_cell(prompt: str, policy: str, ratio: float) -> Cell:
    """Return a cell of the sweep."""
    return Cell(prompt, policy, ratio, f"ratio-{ratio!r}")


def matched_cell(prompt: str, policy: str, ratio: float) -> Cell:
    """Return a cell at matched quality."""
    return Cell(prompt, policy, ratio, MATCHED)


class Cells:
    """The cells of a results folder: ``masks/`` and ``cells/``.

    Parameters
    ----------
    folder
        The folder.
    """

    def __init__(self, folder: ResultsFolder) -> None:
        self._folder = folder

    def has(self, cell: Cell) -> bool:
        """Say whether a cell is done."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return bool(self._read(cell)["ratio"] == cell.ratio and self._mask_file(cell).is_file())
        return False

    def save(self, cell: Cell, mask: KeepMask, quality: Quality) -> None:
        """Write a cell's files, each whole or not at all."""
        mask.save(self._folder.place(f"{MASKS}/{cell.path}.npz"))
        record = {**asdict(cell), "retained": float(mask.array.mean()), **asdict(quality)}
        self._folder.write(f"{CELLS}/{cell.path}.json", as_json(record))

    def mask(self, cell: Cell) -> KeepMask:
        """Return a cell's keep mask; InputError if it can't be read."""
        return KeepMask.load(self._mask_file(cell))

    def quality(self, cell: Cell) -> Quality:
        """Return a cell's quality; InputError if it can't be read."""
        try:
            record = self._read(cell)
            return Quality(**{name: record[name] for name in Quality.__dataclass_fields__})
        except (OSError, ValueError, KeyError, TypeError) as error:
            file = self._record_file(cell)
            raise InputError(f"{file}: is no measured cell; delete it and measure again") from error

    def _mask_file(self, cell: Cell) -> Path:
        return self._folder.path / MASKS / f"{cell.path}.npz"

    def _record_file(self, cell: Cell) -> Path:
        return self._folder.path / CELLS / f"{cell.path}.json"

    def _read(self, cell: Cell) -> Any:
        return json.loads(self._record_file(cell).read_bytes())
