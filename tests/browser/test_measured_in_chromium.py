"""The section "On a real model" in a real Chromium: its switch, its points, its masks by layer and head."""

from __future__ import annotations

from typing import Any

import measured_tables
import numpy as np
import pytest
from page_helpers import chart_text, settle, tooltip, values

FIGURES = [
    "measured-tradeoff",
    "measured-copies",
    "measured-matched",
    "measured-saving",
    "measured-block-size",
]


def choose(page: Any, tables: str) -> None:
    page.locator(f"[data-section=measured][data-control=block-tables] [data-value={tables}]").click()
    settle(page, *FIGURES)


def test_the_switch_turns_every_figure_of_the_section(page: Any) -> None:
    before = {name: values(page, name) for name in FIGURES}
    choose(page, "per_head")
    after = {name: values(page, name) for name in FIGURES}
    assert all(after[name] != before[name] for name in FIGURES)
    shares = measured_tables.measured().filter(
        policy="snapkv", ratio=0.5, block_size=16, block_tables="per_head"
    )["physical_reclaim"]
    row = next(row for row in after["measured-tradeoff"] if row[0] == "SnapKV" and row[3] == "0.5000")
    assert row[1] == f"{shares.mean():.4f} ± {shares.std(ddof=0):.4f}"
    assert row[-2:] == ["measured", "5"]
    choose(page, "shared")
    assert {name: values(page, name) for name in FIGURES} == before


def test_pointing_at_a_point_gives_values_spreads_ratio_kind_and_count(page: Any) -> None:
    chart = page.locator("#measured-tradeoff .chart svg.marks")
    chart.scroll_into_view_if_needed()
    points = page.locator("#measured-tradeoff .chart svg .mark-symbol.role-mark path")
    own = [point for point in points.all() if "StreamingLLM" in (point.get_attribute("aria-label") or "")]
    box = own[3].bounding_box()
    words = tooltip(page, box["x"] + box["width"] / 2 + 2, box["y"] + box["height"] / 2 + 2)
    assert words == (
        "Series StreamingLLM Physical reclaim 0.4920 ± 0 KL (nats) 0.0330 ± 0.0028 "
        "Ratio asked 0.5000 Retained 0.5000 Kind measured n 5"
    )


def test_pointing_at_an_empty_bar_gives_its_interval(page: Any) -> None:
    page.locator("#measured-matched .chart svg.marks").scroll_into_view_if_needed()
    name = page.locator("#measured-matched .chart svg text", has_text="KeyDiff").bounding_box()
    words = tooltip(page, name["x"] + 200, name["y"] + name["height"] / 2 + 11 + 5)
    assert words == (
        "Policy KeyDiff Series Free at eviction, no copy Median reclaim [95 % interval] 0 [0, 0] "
        "Kind measured n 5"
    )


def test_ratios_outside_the_sweep_are_told_beside_the_name(page: Any) -> None:
    words = chart_text(page, "measured-matched")
    assert "ratio ≥ 0.90 (3 of 5 outside)" in words
    assert "ratio < 0.10 (5 of 5 outside)" in words


@pytest.mark.parametrize("name", ["measured-tradeoff", "measured-saving", "measured-block-size"])
def test_one_of_a_dozen_policies_hides_and_comes_back(page: Any, name: str) -> None:
    lines = page.locator(f"#{name} .chart svg .mark-line path")
    entry = page.locator(f"#{name} .legend button", has_text="Ada-KV")
    before = lines.count()
    entry.click()
    settle(page, name)
    assert lines.count() == before - 1
    entry.click()
    settle(page, name)
    assert lines.count() == before


def test_masks_are_chosen_by_policy_and_by_layer_and_head(page: Any) -> None:
    maps = measured_tables.block_maps()
    cells = page.locator("#measured-map .block-map-canvas rect:not(.hatch-ground)")
    live = "nodes => nodes.flatMap((node, slot) => node.classList.contains('live') ? [slot] : [])"
    for policy, title in enumerate(("StreamingLLM", "Ada-KV (SnapKV)")):
        page.locator("#measured-map button", has_text=title).click()
        for view, words in enumerate(measured_tables.VIEWS):
            page.locator("#measured-map").get_by_role("button", name=words, exact=True).click()
            frame = maps[policy * len(measured_tables.VIEWS) + view]["frames"][1]
            bits = np.unpackbits(np.frombuffer(bytes.fromhex(frame["keep"]), np.uint8))
            assert cells.evaluate_all(live) == np.flatnonzero(bits).tolist()
            said = page.locator("#measured-map .block-map-words").inner_text()
            assert said.startswith(f"{title}, {words}, 50 % evicted: {frame['free_blocks']} of 16 blocks")
    page.locator("#measured-map [data-view='0']").click()
    page.locator("#measured-map [data-policy='0']").click()


def test_the_section_says_when_it_was_measured(page: Any) -> None:
    mark = page.locator("#measured .provenance")
    assert mark.is_visible()
    assert mark.inner_text().startswith("Measured on 2026-03-04")


def test_needles_are_chosen_by_their_task(page: Any) -> None:
    single = values(page, "measured-needles")
    assert ["SnapKV", "Question unseen"] in [row[:2] for row in single]
    assert "66 of 66, 20 of 66" in chart_text(page, "measured-needles")
    page.locator("#measured-needles [data-value='multi-key']").click()
    settle(page, "measured-needles")
    assert values(page, "measured-needles") != single
    assert "22 of 49, 0 of 49" in chart_text(page, "measured-needles")
    page.locator("#measured-needles [data-value='single']").click()
    settle(page, "measured-needles")
    assert values(page, "measured-needles") == single
