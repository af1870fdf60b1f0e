"""The charts in a real Chromium without a network: drawn, pointed at, hidden, switched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_helpers import FIGURES, chart_text, settle, tooltip, values

STRATEGY_FIGURES = [name for name in FIGURES if name.startswith("strategies-")]


@pytest.mark.parametrize("name", FIGURES)
def test_every_chart_is_drawn(page: Any, name: str) -> None:
    chart = page.locator(f"#{name} .chart svg.marks")
    box = chart.bounding_box()
    assert box["width"] > 300
    assert box["height"] > 120
    marks = ", ".join(f"#{name} .chart svg .mark-{kind} path" for kind in ("rect", "line", "symbol"))
    assert page.locator(marks).count() >= 3
    assert "NaN" not in chart.inner_html()


def test_the_page_has_these_figures_and_says_nothing(opened: Any) -> None:
    named = opened.page.locator("figure:has(.chart)").evaluate_all("nodes => nodes.map(node => node.id)")
    assert named == FIGURES
    assert opened.said == []


def test_the_page_asks_for_nothing_but_itself(opened: Any, page_file: Path) -> None:
    assert [url for url in opened.asked if not url.startswith(("data:", page_file.as_uri()))] == []


def test_pointing_at_a_bar_gives_value_spread_count_and_kind(page: Any) -> None:
    chart = page.locator("#shapes-reclaim .chart svg.marks")
    chart.scroll_into_view_if_needed()
    name = page.locator("#shapes-reclaim .chart svg text", has_text="StreamingLLM").bounding_box()
    words = tooltip(page, name["x"] + 60, name["y"] + name["height"] + 12)
    assert words == "Series StreamingLLM Physical reclaim 0.4700 ± 0.0200 Kind simulated n 30"


def test_pointing_near_a_line_gives_its_nearest_point(page: Any) -> None:
    chart = page.locator("#correlation-reclaim .chart svg.marks")
    chart.scroll_into_view_if_needed()
    points = page.locator("#correlation-reclaim .chart svg .mark-symbol.role-mark path")
    low = [
        point for point in points.all() if "Lowest importance" in (point.get_attribute("aria-label") or "")
    ]
    box = low[4].bounding_box()
    words = tooltip(page, box["x"] + box["width"] / 2 + 6, box["y"] + box["height"] / 2 + 6)
    assert words == "Series Lowest importance ρ 0.7500 Share of blocks 0.1962 ± 0.0100 Kind simulated n 30"


def test_a_legend_entry_hides_its_series_and_shows_it_again(page: Any) -> None:
    entry = page.locator("#shapes-retained .legend button", has_text="StreamingLLM")
    lines = page.locator("#shapes-retained .chart svg .mark-line path")
    before = lines.count()
    entry.click()
    settle(page, "shapes-retained")
    assert (entry.get_attribute("aria-pressed"), lines.count()) == ("false", before - 1)
    entry.click()
    settle(page, "shapes-retained")
    assert (entry.get_attribute("aria-pressed"), lines.count()) == ("true", before)


def test_a_hidden_series_stays_hidden_when_the_scale_changes(page: Any) -> None:
    entry = page.locator("#bound-efficiency .legend button", has_text="B = 16")
    lines = page.locator("#bound-efficiency .chart svg .mark-line path")
    entry.click()
    page.locator("[data-section=bound] [data-value=log]").click()
    settle(page, "bound-efficiency", "bound-reclaim")
    assert lines.count() == 4
    entry.click()
    page.locator("[data-section=bound] [data-value=linear]").click()
    settle(page, "bound-efficiency", "bound-reclaim")
    assert lines.count() == 5


def test_the_distribution_switch_turns_every_figure_of_its_section(page: Any) -> None:
    before = {name: values(page, name) for name in STRATEGY_FIGURES}
    page.get_by_role("button", name="Uniform").click()
    settle(page, *STRATEGY_FIGURES)
    losses = {line[0]: line[2] for line in values(page, "strategies-tradeoff")}
    assert losses["Block-wise"] == "0.4100 ± 0.0100"
    assert page.get_by_role("button", name="Uniform").get_attribute("aria-pressed") == "true"
    assert page.get_by_role("button", name="Lognormal").get_attribute("aria-pressed") == "false"
    page.get_by_role("button", name="Lognormal").click()
    settle(page, *STRATEGY_FIGURES)
    assert {name: values(page, name) for name in STRATEGY_FIGURES} == before


@pytest.mark.parametrize("name", ["bound-reclaim", "bound-efficiency"])
def test_the_scale_turns_logarithmic(page: Any, name: str) -> None:
    assert "0.0001" not in chart_text(page, name)
    page.locator("[data-section=bound] [data-value=log]").click()
    settle(page, "bound-reclaim", "bound-efficiency")
    assert "0.000001" in chart_text(page, name)
    page.locator("[data-section=bound] [data-value=linear]").click()
    settle(page, "bound-reclaim", "bound-efficiency")


def test_slots_per_move_begin_logarithmic_and_turn_alone(page: Any) -> None:
    assert "0.1" in chart_text(page, "compaction-slots-per-move").split("\n")
    moves = chart_text(page, "compaction-moves")
    page.locator("#compaction-slots-per-move [data-value=linear]").click()
    settle(page, "compaction-slots-per-move")
    assert "0.1" not in chart_text(page, "compaction-slots-per-move").split("\n")
    assert chart_text(page, "compaction-moves") == moves
    page.locator("#compaction-slots-per-move [data-value=log]").click()
    settle(page, "compaction-slots-per-move")
