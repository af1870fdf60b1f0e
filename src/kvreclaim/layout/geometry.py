"""How large one key and value are in a model, and which layers see only a window of the context."""

from __future__ import annotations

from dataclasses import dataclass

from kvreclaim.errors import InputError
from kvreclaim.layout.tables import LayerGroup
from kvreclaim.validate import positive_int

DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}


@dataclass(frozen=True)
class KVGeometry:
    """Shape and element type of the keys and values that a model caches for one token.

    Parameters
    ----------
    name
        Name of the model.
    layers
        Layers that cache keys and values.
    kv_heads
        Key and value heads of each layer; with grouped-query attention fewer than the query heads.
    head_dim
        Elements of one key, and of one value.
    dtype
        Element type of the cache, a key of ``DTYPE_BYTES``.
    windows
        Attention window of each layer in tokens, None where a layer attends to everything.
        Empty: every layer does.

    Raises
    ------
    InputError
        If a number is not a positive integer, the dtype is unknown, or the windows are not one per layer.
    """

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype: str = "bfloat16"
    windows: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        for field in ("layers", "kv_heads", "head_dim"):
            object.__setattr__(self, field, positive_int(getattr(self, field), f"{field} of {self.name}"))
        if self.dtype not in DTYPE_BYTES:
            raise InputError(f"dtype of {self.name} is {self.dtype!r}: pass one of {', '.join(DTYPE_BYTES)}")
        what = f"a window of {self.name}"
        windows = tuple(None if window is None else positive_int(window, what) for window in self.windows)
        if windows and len(windows) != self.layers:
            raise InputError(
                f"{self.name} has {self.layers} layers and {len(windows)} windows: pass one for each layer"
            )
        object.__setattr__(self, "windows", windows if any(windows) else ())

    @property
    def bytes_per_pair(self) -> int:
        """Bytes of one key and its value, of one head in one layer."""
        return 2 * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token, over all heads and layers."""
        return self.layers * self.kv_heads * self.bytes_per_pair

    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """Return the layers grouped by window, in order of each group's first layer.

        A model whose layers all see the same is one group. A runtime may split a group further, to give
        all its groups equally many layers.
        """
        layers_of: dict[int | None, list[int]] = {}
        for layer, window in enumerate(self.windows or (None,) * self.layers):
            layers_of.setdefault(window, []).append(layer)
        return tuple(LayerGroup(tuple(layers), window) for window, layers in layers_of.items())


def sliding_windows(layers: int, window: int, full_every: int | None = None) -> tuple[int | None, ...]:
    """Return the window of each layer: all slide, but the last of every ``full_every`` sees everything."""
    slides = [full_every is None or (layer + 1) % full_every != 0 for layer in range(layers)]
    return tuple(window if slide else None for slide in slides)
