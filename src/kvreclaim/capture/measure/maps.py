"""Block maps of real masks: what the shared table sees, and what some layers and heads do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvreclaim.blockmap import block_map, block_map_frame
from kvreclaim.capture.measure.cells import Cells, sweep_cell
from kvreclaim.capture.measure.plan import Plan
from kvreclaim.keep import KeepMask

# A frame is some kilobytes: these keep the file below a few hundred.
MOST_POLICIES = 8
MOST_HEADS = 2
FRAMES_NEAR = (0.25, 0.5, 0.75)
WHOLE = "all layers and heads"


def block_maps(plan: Plan, cells: Cells, block_size: int) -> list[dict[str, Any]]:
    """Return block maps of the first prompt, of the first policies of a plan.

    For each policy, in the same order, a map of all layers and heads together, of the first, middle and last
    layer, and of some heads of the middle one; each names what it shows under ``view``. All have as many
    frames, at the ratios nearest to a quarter, a half and three quarters.
    """
    prompt = plan.prompts[0].name
    ratios = sorted({min(plan.ratios, key=lambda ratio: abs(ratio - near)) for near in FRAMES_NEAR})
    maps = []
    for policy in plan.policies[:MOST_POLICIES]:
        masks = [cells.mask(sweep_cell(prompt, policy, ratio)) for ratio in ratios]
        for view, place in _views(masks[0]):
            frames = [
                block_map_frame(KeepMask(mask.array[place]), block_size, ratio)
                for mask, ratio in zip(masks, ratios, strict=True)
            ]
            maps.append({**block_map(f"{policy}/{view}", policy, block_size, frames), "view": view})
    return maps


def _views(mask: KeepMask) -> Iterator[tuple[str, Any]]:
    """Yield what is shown, and its place in the mask's array."""
    middle = mask.layers // 2
    yield WHOLE, np.s_[:]
    for layer in sorted({0, middle, mask.layers - 1}):
        yield f"layer {layer}", np.s_[layer]
    for head in range(min(mask.kv_heads, MOST_HEADS)):
        yield f"layer {middle}, head {head}", np.s_[middle, head]
