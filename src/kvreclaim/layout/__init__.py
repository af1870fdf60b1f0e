"""Block layouts, runtime presets and the KV geometry of models."""

from kvreclaim.layout.config import geometry_from_config
from kvreclaim.layout.geometry import KVGeometry
from kvreclaim.layout.models import KnownModel, model, models
from kvreclaim.layout.runtimes import RuntimePreset, runtime, runtimes
from kvreclaim.layout.tables import BLOCK_TABLES, PER_HEAD, PER_LAYER, SHARED, BlockLayout, LayerGroup

__all__ = [
    "BLOCK_TABLES",
    "PER_HEAD",
    "PER_LAYER",
    "SHARED",
    "BlockLayout",
    "KVGeometry",
    "KnownModel",
    "LayerGroup",
    "RuntimePreset",
    "geometry_from_config",
    "model",
    "models",
    "runtime",
    "runtimes",
]
