"""Keep masks from a file, one per prompt."""

from __future__ import annotations

from collections.abc import Sequence

from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask, load_keep_masks
from kvreclaim.runtimes.vllm.options import prompt_name


class MaskFile:
    """The masks of a file, by prompt.

    Parameters
    ----------
    path
        A keep-mask file.
    layers, kv_heads
        The model's.

    Raises
    ------
    InputError
        If the file can't be read, a mask has another shape than the model, or keeps nothing of some head.
    """

    def __init__(self, path: str, layers: int, kv_heads: int) -> None:
        masks = load_keep_masks(path)
        for mask in masks:
            if mask.array.shape[:2] != (layers, kv_heads):
                raise InputError(
                    f"{path}: mask {mask.name!r} has {mask.layers} layers and {mask.kv_heads} KV heads, the "
                    f"model {layers} and {kv_heads}: pass masks of this model"
                )
            if not mask.array.any(axis=-1).all():
                raise InputError(
                    f"{path}: mask {mask.name!r} keeps nothing of some head: keep a pair of each"
                )
        self._only = masks[0] if len(masks) == 1 else None
        self._by_name = {mask.name: mask for mask in masks}

    def of(self, prompt: Sequence[int]) -> KeepMask | None:
        """Return the mask of a prompt; None if there is none of its name and length."""
        mask = self._by_name.get(prompt_name(tuple(prompt)), self._only)
        return mask if mask is not None and mask.tokens == len(prompt) else None
