"""The block map: each policy's evictions, block by block."""

from __future__ import annotations

from kvreclaim.report.folder import Folder
from kvreclaim.report.section import BlockMaps, Section


def build(folder: Folder) -> Section:
    """Return the section of the study's block maps."""
    return Section(
        id="blocks",
        title="One sequence, block by block",
        prose=(
            "A paged runtime keeps the KV pairs of a sequence in blocks of B token slots and gets memory "
            "back a whole block at a time. Choose a policy and move the slider: every policy drops the "
            "same number of tokens, yet the blocks that come free depend on where the survivors lie. A "
            "dead token beside a survivor stays in memory, unused: dead but held.",
        ),
        items=(
            BlockMaps(
                id="block-map",
                title="Where the evicted tokens lie",
                caption=(
                    "One synthetic sequence, one seed, one layer and head: rows are blocks, cells are "
                    "token slots. The compaction steps show the fewest moves that free the most blocks, "
                    "and the blocks after them."
                ),
                maps=folder.block_maps,
            ),
        ),
        sources=("study", "paged-attention"),
    )
