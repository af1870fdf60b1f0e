"""Named arrays in keep-mask files: ``.npz``, ``.npy`` and ``.safetensors``; never pickle.

docs/mask-file.md gives the format. Every array is one keep mask under the mask's name. The header is JSON
text: in ``.npz`` the UTF-8 bytes of a uint8 array named ``__kvreclaim__``, in ``.safetensors`` the entry
``kvreclaim`` of the file's own header. A ``.npy`` file holds one mask, named after the file, and no header.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from kvreclaim.errors import InputError
from kvreclaim.results import write_bytes
from kvreclaim.validate import shown

HEADER = "__kvreclaim__"
NAMELESS = "mask"  # what an array without a name is called
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # a fixed date, so that equal masks make equal files

_RESERVED = {".safetensors": {HEADER, "__metadata__"}}
_LONGEST_NAME = 2**16 - 1 - len(".npy")  # bytes: a zip's entry has 16 bits for their number

Arrays = dict[str, NDArray[Any]]


def read_arrays(path: str | PathLike[str]) -> tuple[str | None, Arrays]:
    """Read a file's header, if it has one, and its arrays by name.

    Raises
    ------
    InputError
        If the file is missing, a directory, of another kind, truncated, pickled, or holds no array.
    """
    file = _named(path)
    try:
        is_directory, exists = file.is_dir(), file.exists()
    except OSError as error:  # such as a name that is too long
        raise InputError(f"{file}: can't be read ({error.strerror})") from error
    if is_directory:
        raise InputError(f"{file}: is a directory; pass a .npz, .npy or .safetensors file")
    read = _codec(file, _READERS)
    if not exists:
        raise InputError(f"{file}: no such file")
    try:
        header, arrays = read(file)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    except Exception as error:  # the three readers raise a dozen kinds on what is not whole
        raise InputError(f"{file}: {_reason(error)}") from error
    if not arrays:
        raise InputError(f"{file}: holds no keep mask")
    return header, arrays


def write_arrays(path: str | PathLike[str], header: str, arrays: Arrays) -> None:
    """Write a header and named arrays, whole or not at all; equal input makes equal files.

    Raises
    ------
    InputError
        If the ending is unknown, there is no array, a name is reserved or can't stand in a file, or the file
        can't be written.
    """
    file = _named(path)
    write = _codec(file, _WRITERS)
    reserved = _RESERVED.get(file.suffix, {HEADER})
    if not arrays or reserved & arrays.keys():
        raise InputError(
            f"{file}: pass at least one mask, none of them named {' or '.join(sorted(reserved))}"
        )
    for name in arrays:
        if file.suffix != ".npy" and not _storable(name):
            raise InputError(
                f"{file}: a file can't hold the name {shown(name)}; pass shorter Unicode text without a NUL"
            )
    write_bytes(file, write(file, header, arrays))


def _named(path: str | PathLike[str]) -> Path:
    """Return the path of a file; InputError if it is none, or empty."""
    if not isinstance(path, str | PathLike) or not os.fspath(path):
        raise InputError(f"{shown(path)} names no file; pass the path of a .npz, .npy or .safetensors file")
    return Path(path)


def _storable(name: str) -> bool:
    """Return whether files give the name back: it is Unicode, without a NUL, and fits a zip's entry."""
    try:
        return "\0" not in name and len(name.encode()) <= _LONGEST_NAME
    except UnicodeEncodeError:  # half a character: an undecodable byte of a file's name
        return False


def _codec(file: Path, codecs: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    if file.suffix not in codecs:
        raise InputError(f"{file}: unknown kind of file; keep masks are .npz, .npy or .safetensors")
    return codecs[file.suffix]


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if " object at 0x" in text:  # a header that Python's parser of literals refused
        text = "its header is damaged"
    if "pickle" in text.lower():
        return "holds pickled objects, which are never loaded; save a bool array"
    return f"not a whole keep-mask file ({text})"


def _read_npz(file: Path) -> tuple[str | None, Arrays]:
    arrays: Arrays = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy") or NAMELESS
            if name in arrays:
                raise InputError(f"holds two arrays of the name {shown(name)}; give each a name of its own")
            with archive.open(member) as stream:
                arrays[name] = _array(stream)
    header = arrays.pop(HEADER, None)
    return (None if header is None else header.astype(np.uint8).tobytes().decode()), arrays


def _write_npz(_file: Path, header: str, arrays: Arrays) -> bytes:
    buffer = BytesIO()
    members = {HEADER: np.frombuffer(header.encode(), np.uint8), **arrays}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in members.items():
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy", _ZIP_DATE), _npy_bytes(array), zipfile.ZIP_DEFLATED
            )
    return buffer.getvalue()


def _read_npy(file: Path) -> tuple[str | None, Arrays]:
    with file.open("rb") as stream:
        return None, {file.stem: _array(stream)}


def _array(stream: IO[bytes]) -> NDArray[Any]:
    """Read one array; ValueError if the bytes are not one, or pickled."""
    magic = stream.read(len(np.lib.format.MAGIC_PREFIX))
    if magic != np.lib.format.MAGIC_PREFIX:
        pickled = magic[:1] == b"\x80" and magic[1:2] <= b"\x05"  # its sign and its protocol
        raise ValueError("a pickle" if pickled else "it does not begin as a NumPy array does")
    stream.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _write_npy(file: Path, _header: str, arrays: Arrays) -> bytes:
    if len(arrays) != 1:
        raise InputError(f"{file}: .npy holds one mask, got {len(arrays)}; save to .npz")
    return _npy_bytes(next(iter(arrays.values())))


def _npy_bytes(array: NDArray[Any]) -> bytes:
    buffer = BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _read_safetensors(file: Path) -> tuple[str | None, Arrays]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            header = (opened.metadata() or {}).get("kvreclaim")
            return header, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _write_safetensors(_file: Path, header: str, arrays: Arrays) -> bytes:
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return bytes(save(contiguous, metadata={"kvreclaim": header}))


_READERS = {".npz": _read_npz, ".npy": _read_npy, ".safetensors": _read_safetensors}
_WRITERS = {".npz": _write_npz, ".npy": _write_npy, ".safetensors": _write_safetensors}
