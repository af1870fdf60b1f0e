"""What an idle engine holds, within what kvcached's own measurement and its reproduction saw."""

import pytest

from kvreclaim.serving.idle import idle_pages

# Pages of Qwen3-4B: lowest and highest of several runs; 16 would hold the 1,000 retained blocks.
RANGES = {
    ("last-in-first-out", "lru"): (71, 75),
    ("last-in-first-out", "page-aware"): (36, 41),
    ("page-aware", "page-aware"): (20, 26),
}


@pytest.mark.parametrize(("policies", "ends"), RANGES.items())
def test_kvcacheds_idle_footprint(policies, ends):
    found = [idle_pages(*policies, seed) for seed in range(4)]
    assert ends[0] <= sum(found) / len(found) <= ends[1]
