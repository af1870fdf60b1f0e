"""KeepMask: which KV pairs survive an eviction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim.errors import InputError
from kvreclaim.maskfile import NAMELESS, read_arrays, write_arrays
from kvreclaim.validate import fraction, positive_int, shown


@dataclass(frozen=True)
class MaskMetadata:
    """What is known of a mask's origin; every field is optional.

    Parameters
    ----------
    model
        Name of the model that the mask was recorded on.
    policy
        Name of the policy that made it.
    ratio
        Compression ratio asked for, in [0, 1]: the fraction of KV pairs to evict.
    prompt_length
        Tokens of the prompt.

    Raises
    ------
    InputError
        If the ratio is outside [0, 1] or the prompt length is not a positive integer.
    """

    model: str | None = None
    policy: str | None = None
    ratio: float | None = None
    prompt_length: int | None = None

    def __post_init__(self) -> None:
        for label in ("model", "policy"):
            if not isinstance(getattr(self, label), str | None):
                raise InputError(f"a mask's {label} must be text, got {getattr(self, label)!r}")
        if self.ratio is not None:
            object.__setattr__(self, "ratio", fraction(self.ratio, "a mask's ratio"))
        if self.prompt_length is not None:
            object.__setattr__(
                self, "prompt_length", positive_int(self.prompt_length, "a mask's prompt_length")
            )


NO_METADATA = MaskMetadata()
FORMAT = "kvreclaim-keep-masks"
_NAMELESS = (NAMELESS, "arr_0")  # what kvreclaim and numpy.savez call an array without a name
VERSION = 1


@dataclass(frozen=True, init=False, eq=False, repr=False)
class KeepMask:
    """A keep mask: bool ``[layers, kv_heads, tokens]``, True where the KV pair survives.

    Parameters
    ----------
    array
        Anything with ``__array__`` or DLPack (NumPy, torch on CPU, jax) or nested lists, of bool or of the
        integers 0 and 1. Rank 3 is ``[layers, kv_heads, tokens]``, rank 2 ``[kv_heads, tokens]`` of one
        layer, rank 1 ``[tokens]`` of one layer and head. A bool array is not copied.
    name
        Label of the mask, such as its policy.
    metadata
        Where the mask comes from.

    Raises
    ------
    InputError
        If the array is empty, of another rank, or not boolean, or name or metadata are not such.
    """

    array: NDArray[np.bool_]
    name: str
    metadata: MaskMetadata

    def __init__(self, array: ArrayLike, name: str = "", metadata: MaskMetadata = NO_METADATA) -> None:
        if not isinstance(name, str):
            raise InputError(f"a mask's name must be text, got {name!r}")
        if not isinstance(metadata, MaskMetadata):
            raise InputError(
                f"a mask's metadata are {shown(metadata)}: pass a MaskMetadata, or leave them out"
            )
        object.__setattr__(self, "array", _as_mask_array(array, name))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "metadata", metadata)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.array.shape[0])

    @property
    def kv_heads(self) -> int:
        """KV heads of each layer."""
        return int(self.array.shape[1])

    @property
    def tokens(self) -> int:
        """Tokens of each head, kept or not."""
        return int(self.array.shape[2])

    @property
    def policy(self) -> str:
        """The policy as the metadata names it, else the mask's own name."""
        return self.metadata.policy or self.name

    @classmethod
    def load(cls, path: str | PathLike[str], name: str | None = None) -> KeepMask:
        """Read one mask from a file; ``name`` says which where the file holds several.

        Raises
        ------
        InputError
            If the file cannot be read as keep masks, or the name does not single out one of them.
        """
        masks = {mask.name: mask for mask in load_keep_masks(path)}
        if name is None and len(masks) == 1:
            return next(iter(masks.values()))
        if name in masks:
            return masks[name]
        found = f"{len(masks)} masks" if name is None else f"no mask {name!r}"
        raise InputError(f"{path}: {found}; pass the name of one: {', '.join(map(repr, masks))}")

    def save(self, path: str | PathLike[str]) -> None:
        """Write the mask to a file; see `kvreclaim.save_keep_masks`."""
        save_keep_masks(path, [self])

    def __repr__(self) -> str:
        shape = f"layers={self.layers}, kv_heads={self.kv_heads}, tokens={self.tokens}"
        return f"KeepMask({self.name!r}, {shape}, retained={float(self.array.mean()):.3f})"


def as_keep_mask(keep: KeepMask | ArrayLike) -> KeepMask:
    """Return ``keep`` itself if it is a `KeepMask`, else the mask of that array (rank 1 to 3)."""
    return keep if isinstance(keep, KeepMask) else KeepMask(keep)


def load_keep_masks(path: str | PathLike[str]) -> list[KeepMask]:
    """Read every keep mask of a ``.npz``, ``.npy`` or ``.safetensors`` file, in the file's order.

    The format is in docs/mask-file.md: one bool (or uint8 0/1) array per mask, of any rank from 1 to 3, with
    metadata where the file has the kvreclaim header. A file's only mask is named after the file where it has
    no name of its own. Nothing is ever unpickled.

    Raises
    ------
    InputError
        If the file is missing, a directory, of another kind, truncated, pickled, or holds no valid mask.
    """
    header, arrays = read_arrays(path)
    try:
        described = _described(header)
        masks = [KeepMask(array, name, described.get(name, NO_METADATA)) for name, array in arrays.items()]
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if len(masks) == 1 and masks[0].policy in _NAMELESS:
        return [KeepMask(masks[0].array, Path(path).stem, masks[0].metadata)]
    return masks


def save_keep_masks(path: str | PathLike[str], masks: Sequence[KeepMask]) -> None:
    """Write masks to one file, whole or not at all.

    Parameters
    ----------
    path
        Where to write: ``.npz``, ``.safetensors``, or ``.npy`` for one mask without metadata.
    masks
        At least one mask, each with a name of its own; a single mask may be nameless.

    Raises
    ------
    InputError
        If the ending is unknown, names are missing, repeat or can't stand in a file, or the file can't
        be written.
    """
    masks = list(masks) if isinstance(masks, Iterable) else [masks]
    if strangers := [type(mask).__name__ for mask in masks if not isinstance(mask, KeepMask)]:
        raise InputError(f"{path}: got {strangers[0]} where a KeepMask is needed; pass a list of them")
    names = [mask.name for mask in masks] if len(masks) > 1 else [mask.name or NAMELESS for mask in masks]
    if not all(names) or len(set(names)) != len(names):
        raise InputError(f"{path}: each mask needs a name of its own, got {names}")
    described = {name: asdict(mask.metadata) for name, mask in zip(names, masks, strict=True)}
    header = json.dumps({"format": FORMAT, "version": VERSION, "masks": described}, sort_keys=True)
    write_arrays(path, header, {name: mask.array for name, mask in zip(names, masks, strict=True)})


def _described(header: str | None) -> dict[str, MaskMetadata]:
    """Return each mask's metadata from a file's header; InputError if it is of another version or damaged."""
    if header is None:
        return {}
    try:
        found = json.loads(header)
        if (found["format"], found["version"]) == (FORMAT, VERSION):
            return {name: MaskMetadata(**fields) for name, fields in found["masks"].items()}
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError("its kvreclaim header is damaged; save the masks again") from error
    raise InputError(
        f"its header is {found['format']!r} version {found['version']!r}; pass {FORMAT!r} version {VERSION}"
    )


def _as_mask_array(array: Any, name: str) -> NDArray[np.bool_]:
    label = f"keep mask {name!r}" if name else "keep mask"
    found = _as_array(array, label)
    if not 1 <= found.ndim <= 3:
        raise InputError(
            f"{label}: got rank {found.ndim}; pass [tokens], [kv_heads, tokens] or [layers, kv_heads, tokens]"
        )
    if found.size == 0:
        raise InputError(f"{label}: empty, shape {found.shape}; pass at least one layer, head and token")
    if found.dtype != np.bool_:
        found = _as_bool(found, label)
    mask = found.reshape((1,) * (3 - found.ndim) + found.shape)
    mask.setflags(write=False)
    return mask


def _as_array(array: Any, label: str) -> NDArray[Any]:
    try:
        if hasattr(array, "__dlpack__") and not hasattr(array, "__array__"):
            return np.from_dlpack(array)
        return np.asarray(array)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{label}: not an array in CPU memory ({reason}); pass a bool array") from error


def _as_bool(found: NDArray[Any], label: str) -> NDArray[np.bool_]:
    if found.dtype.kind not in "iu" or found.min() < 0 or found.max() > 1:
        raise InputError(f"{label}: values must be bool, or the integers 0 and 1; got dtype {found.dtype}")
    return found.astype(np.bool_)
