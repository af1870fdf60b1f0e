"""kvreclaim: how much GPU memory KV-cache compression really gives back.

>>> import numpy as np
>>> from kvreclaim import BlockLayout, audit
>>> keep = np.zeros(64, bool)
>>> keep[::2] = True
>>> audit(keep, BlockLayout(block_size=16)).physical_reclaim
0.0
"""

from kvreclaim import bounds, policies
from kvreclaim.compaction import plan_compaction
from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask, load_keep_masks, save_keep_masks
from kvreclaim.layout import BlockLayout
from kvreclaim.ledger import Ledger, audit
from kvreclaim.occupancy import occupancy
from kvreclaim.pool import BlockPool
from kvreclaim.version import __version__

__all__ = [
    "BlockLayout",
    "BlockPool",
    "InputError",
    "KeepMask",
    "Ledger",
    "__version__",
    "audit",
    "bounds",
    "load_keep_masks",
    "occupancy",
    "plan_compaction",
    "policies",
    "save_keep_masks",
]
