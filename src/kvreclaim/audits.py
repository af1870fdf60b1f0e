"""Audits of keep-mask files: a ledger for every mask and layout, and their results folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from kvreclaim.blockmap import block_map, block_map_frame
from kvreclaim.keep import KeepMask, load_keep_masks
from kvreclaim.layout import BlockLayout, KVGeometry
from kvreclaim.ledger import Ledger, audit
from kvreclaim.results import SCHEMA, ResultsFolder, as_csv, as_json
from kvreclaim.returned import bytes_returned, page_rows


@dataclass(frozen=True)
class FileAudit:
    """One mask of a file under one layout, with what the file says of the mask's origin."""

    file: str
    ledger: Ledger
    model: str | None = None
    ratio: float | None = None
    page_bytes: int | None = None
    bytes_returned: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the file's name and the ledger as plain, JSON-ready values."""
        pages = {"page_bytes": self.page_bytes, "bytes_returned": self.bytes_returned}
        return {"file": self.file, **self.ledger.to_dict(), **pages}

    def flat(self) -> dict[str, Any]:
        """Return it all in one level, with the origin: ``compaction_moved_tokens`` was nested."""
        flat: dict[str, Any] = {"file": self.file, "model": self.model, "ratio": self.ratio}
        for key, value in self.to_dict().items():
            flat |= (
                {f"{key}_{name}": item for name, item in value.items()}
                if isinstance(value, dict)
                else {key: value}
            )
        return flat


def labels(rows: Sequence[FileAudit]) -> list[str]:
    """Name each row by its policy, and by what tells its masks apart where they are not to be pooled.

    Masks of one policy are pooled if model, asked ratio and shape are the same.
    """
    origins: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        origins.setdefault(row.ledger.policy, set()).add(_origin(row))
    return [_label(row, origins[row.ledger.policy]) for row in rows]


def _origin(row: FileAudit) -> tuple[str, ...]:
    ledger = row.ledger
    shape = f"{ledger.layers}×{ledger.kv_heads}×{ledger.tokens}"
    return (
        row.model or "model unknown",
        "ratio unknown" if row.ratio is None else f"ratio {row.ratio:g}",
        shape,
    )


def _label(row: FileAudit, origins: set[tuple[str, ...]]) -> str:
    differing = [
        part
        for part, all_parts in zip(_origin(row), zip(*origins, strict=True), strict=True)
        if len(set(all_parts)) > 1
    ]
    return ", ".join([row.ledger.policy, *differing])


def audit_files(
    paths: Sequence[str | PathLike[str]],
    layouts: Sequence[BlockLayout],
    geometry: KVGeometry | None = None,
    advance: Callable[[], None] = lambda: None,
    page_bytes: int | None = None,
) -> list[FileAudit]:
    """Audit every mask of every file under every layout; all files are read before the first audit.

    Parameters
    ----------
    paths
        Keep-mask files; arrays may differ in shape within a file.
    layouts
        Block layouts. Where they have no layer groups and the geometry has windows, its groups are used.
    geometry
        The model's KV geometry, for bytes and windows.
    advance
        Called after each file.
    page_bytes
        Bytes of a VMM page, for the bytes that return to the GPU; needs the geometry.

    Raises
    ------
    InputError
        If a file can't be read, or a mask does not fit the geometry.
    """
    masks_of = {str(path): load_keep_masks(path) for path in paths}
    rows = []
    for file, masks in masks_of.items():
        for mask in masks:
            origin = mask.metadata
            for layout in layouts:
                windowed = _with_windows(layout, mask, geometry)
                returned = None
                if page_bytes is not None and geometry is not None:
                    returned = bytes_returned(mask, windowed, geometry, page_bytes)
                ledger = audit(mask, windowed, geometry)
                rows.append(FileAudit(file, ledger, origin.model, origin.ratio, page_bytes, returned))
        advance()
    return rows


def write_audit(
    path: str | PathLike[str],
    rows: Sequence[FileAudit],
    parameters: dict[str, Any],
    block_size: int,
    geometry: KVGeometry | None = None,
) -> ResultsFolder:
    """Write a results folder: ``audit.csv``, ``audit.json``, ``interactive_data.json`` and ``run.json``.

    Parameters
    ----------
    path
        The folder.
    rows
        What `audit_files` returned.
    parameters
        What the command was called with, for ``run.json``.
    block_size
        Tokens of a block in the block maps, and in ``pages.csv``, which are of the first file's masks.
    geometry
        The model's, where pages were asked for.

    Raises
    ------
    InputError
        If the folder or a file in it can't be written.
    """
    maps = {"schema": SCHEMA, "block_maps": _block_maps(load_keep_masks(rows[0].file), block_size)}
    flat = [row.flat() for row in rows]
    texts = {
        "audit.csv": as_csv(list(flat[0]), flat),
        "audit.json": as_json([row.to_dict() for row in rows]),
        "interactive_data.json": as_json(maps),
    }
    if geometry is not None and rows[0].page_bytes is not None:
        layout = BlockLayout(block_size)
        pages = page_rows(load_keep_masks(rows[0].file), layout, geometry, rows[0].page_bytes)
        texts["pages.csv"] = as_csv(list(pages[0]), pages)
    folder = ResultsFolder(path)
    folder.claim("audit")
    for name, text in texts.items():
        folder.write(name, text)
    folder.write_run("audit", parameters, kinds=["measured"], packages=["numpy"])
    return folder


def _with_windows(layout: BlockLayout, mask: KeepMask, geometry: KVGeometry | None) -> BlockLayout:
    """Give a layout the windows of the model's layers, where the mask tells its layers apart."""
    if geometry is None or not geometry.windows or layout.groups or mask.layers != geometry.layers:
        return layout
    return replace(layout, groups=geometry.layer_groups())


def _block_maps(masks: Iterable[KeepMask], block_size: int) -> list[dict[str, Any]]:
    maps = []
    for mask in masks:
        ratio = 1 - float(mask.array.mean())
        maps.append(
            block_map(mask.policy, mask.policy, block_size, [block_map_frame(mask, block_size, ratio)])
        )
    return maps
