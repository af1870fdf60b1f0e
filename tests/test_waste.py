"""What hybrid models waste in one table, as vllm-project/vllm#11382 gives it."""

import pytest

from kvreclaim.errors import InputError
from kvreclaim.layout import KVGeometry, model
from kvreclaim.layout.geometry import sliding_windows
from kvreclaim.layout.waste import Layers, Ring, repeated_heads_share, wasted_share, windows_waste


def test_mllama_where_text_and_image_lie_in_every_layer():
    # 32 layers of self-attention need 43 tokens of text, 8 of cross-attention 6,404 of the image.
    assert wasted_share([Layers(32, 43), Layers(8, 6404)], 43 + 6404) == pytest.approx(0.796, abs=5e-4)


def test_gemma_2_at_twice_its_window():
    assert windows_waste(model("gemma-2-9b"), 8192) == 0.25


def test_ministral_at_four_times_its_window():
    geometry = KVGeometry("ministral", 36, 8, 128, windows=sliding_windows(36, 32768, full_every=4))
    assert windows_waste(geometry, 131072) == 0.5625


def test_nothing_is_wasted_within_the_window():
    assert windows_waste(model("gemma-2-9b"), 4096) == 0
    assert windows_waste(model("llama-3-8b"), 4096) == 0


def test_layers_that_need_more_than_is_held():
    with pytest.raises(InputError, match="no more"):
        wasted_share([Layers(1, 9)], 8)


def test_repeated_heads_break_even_at_one_less_one_over_the_groups():
    # FasterDecoding/SnapKV#16: groups of 4 save nothing before 75 %.
    assert repeated_heads_share(0.75, 4) == 1
    assert repeated_heads_share(0.5, 4) == 2
    assert repeated_heads_share(0.9, 4) == pytest.approx(0.4)


def test_a_ring_returns_nothing_and_a_smaller_one_is_smaller():
    ring = Ring(model("llama-3-8b"), 8192)
    assert ring.allocated == 2**30
    assert ring.returned(8000) == 0
    assert ring.saved_by(4096) == 2**29
    with pytest.raises(InputError, match="no more"):
        ring.returned(9000)
