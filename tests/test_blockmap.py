"""Block maps: what a frame says of the tokens and pairs that are held in vain."""

import pytest

from kvreclaim import KeepMask
from kvreclaim.blockmap import block_map_frame

# Two heads, blocks of 4. In the first are a token that both keep, one that one keeps, two that none keeps.
HEADS = [[1, 1, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]]


def test_a_frame_of_many_heads_counts_dead_pairs_and_tokens_dead_in_all() -> None:
    frame = block_map_frame(KeepMask(HEADS), 4, 0.5)
    assert (frame["blocks"], frame["free_blocks"]) == (2, 1)
    assert frame["dead_tokens_held"] == 2
    assert frame["stranded"] == pytest.approx(5 / 8)
    assert frame["share"] == "f8000000"


def test_a_frame_of_one_head_needs_no_share() -> None:
    frame = block_map_frame(KeepMask(HEADS[0]), 4, 0.75)
    assert frame["dead_tokens_held"] == 2
    assert not {"share", "stranded"} & set(frame)


def test_where_nothing_is_held_nothing_is_stranded() -> None:
    frame = block_map_frame(KeepMask([[0, 0], [0, 0]]), 2, 1.0)
    assert (frame["dead_tokens_held"], frame["stranded"]) == (0, None)
