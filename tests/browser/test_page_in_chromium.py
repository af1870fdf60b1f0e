"""The page in a real Chromium: labels, block maps, keyboard, widths, themes and paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import report_tables
from page_helpers import FIGURES, chart_text, settle

NUMBER_VISIBLE = """nodes => nodes.filter(node => node.checkVisibility())
    .map((node, place) => { node.dataset.stop = place; }).length"""
OUTSIDE_WINDOW = """nodes => nodes.filter(node => node.checkVisibility())
    .map(node => node.getBoundingClientRect())
    .filter(box => box.width > 0 && (box.right > innerWidth + 1 || box.left < -1)).length"""
CELLS = "#block-map .block-map-canvas rect:not(.hatch-ground)"
LIVE_SLOTS = "nodes => nodes.flatMap((node, slot) => node.classList.contains('live') ? [slot] : [])"
# Words that leave their chart, and pairs of them that overlap by more than their boxes' margins.
BAD_WORDS = """svg => {
    const around = svg.getBoundingClientRect();
    const words = [...svg.querySelectorAll("text")]
        .filter(node => node.textContent && getComputedStyle(node).opacity !== "0")
        .map(node => [node.textContent, node.getBoundingClientRect()]);
    const cut = words.filter(([, box]) => box.left < around.left - 1 || box.right > around.right + 1
        || box.top < around.top - 1 || box.bottom > around.bottom + 1).map(([text]) => text);
    const pairs = words.flatMap(([one, a], place) => words.slice(place + 1)
        .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
            && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
        .map(([other]) => `${one} on ${other}`));
    return [...cut, ...pairs];
}"""


# Labels


def test_a_hostile_name_is_text_in_charts_buttons_and_tables(page: Any) -> None:
    hostile = report_tables.HOSTILE
    assert hostile in chart_text(page, "masks-tables")
    assert page.locator("#masks-map button", has_text=hostile).count() == 1
    assert page.locator("#masks-ledger th", has_text=hostile).count() == 1
    assert page.locator(".notes li", has_text=report_tables.FAULT).count() == 1


# Block map


def cells(page: Any, state: str) -> int:
    return int(page.locator(f"#block-map .block-map-canvas rect.{state}").count())


def test_the_slider_shows_the_masks_of_the_data(page: Any) -> None:
    maps = {found["id"]: found for found in report_tables.block_maps()}
    page.locator("#block-map button", has_text="h2o").click()
    slider = page.get_by_role("slider")
    slider.first.focus()
    page.keyboard.press("Home")
    for place, frame in enumerate(maps["h2o"]["frames"]):
        if place in (0, 9, 18):
            words = page.locator("#block-map .block-map-words").inner_text()
            percent = round(100 * frame["compression_ratio"])
            assert words.startswith(f"h2o, {percent} % evicted: {frame['free_blocks']} of 32 blocks freed")
            assert f"{frame['dead_tokens_held']} dead tokens" in words
            bits = np.unpackbits(np.frombuffer(bytes.fromhex(frame["keep"]), np.uint8))
            assert page.locator(CELLS).evaluate_all(LIVE_SLOTS) == np.flatnonzero(bits).tolist()
            assert cells(page, "held") == frame["dead_tokens_held"]
            assert cells(page, "freed") == 16 * frame["free_blocks"]
            assert slider.first.get_attribute("aria-valuetext") == f"{percent} % evicted"
        page.keyboard.press("ArrowRight")


def test_compacting_shows_the_moves_and_the_blocks_after_them(page: Any) -> None:
    frame = report_tables.block_maps()[0]["frames"][9]
    assert frame["compaction"]["moves"]
    page.locator("#block-map button", has_text="random").click()
    page.get_by_role("slider").first.fill("9")
    live = cells(page, "live")
    page.locator("#block-map [data-step=moves]").click()
    assert page.locator("#block-map path.move").count() == len(frame["compaction"]["moves"])
    assert (cells(page, "source"), cells(page, "destination")) == (1, 1)
    assert "1 move would free 1 more block" in page.locator("#block-map .block-map-words").inner_text()
    page.locator("#block-map [data-step=compacted]").click()
    assert page.locator("#block-map path.move").count() == 0
    assert cells(page, "live") == live
    assert (
        f"{frame['free_blocks'] + 1} of 32 blocks are free"
        in page.locator("#block-map .block-map-words").inner_text()
    )
    page.locator("#block-map [data-step=evicted]").click()


def test_a_map_of_a_real_mask_has_no_slider_and_shades_by_share(page: Any) -> None:
    assert not page.locator("#masks-map input[type=range]").is_visible()
    words = page.locator("#masks-map .block-map-words").inner_text()
    assert "48 % of the KV pairs still held are dead; " in words
    assert words.endswith("tokens held are dead in every head.")
    assert page.locator("#masks-map .for-shares").is_visible()
    page.locator("#masks-map [data-step=moves]").click()
    assert not page.locator("#masks-map .for-shares").is_visible()
    page.locator("#masks-map [data-step=evicted]").click()
    shades = page.locator("#masks-map rect.live").evaluate_all(
        "nodes => nodes.map(node => node.getAttribute('fill-opacity'))"
    )
    assert set(shades) == {"1"}
    assert page.locator("#masks-map rect.unfilled").count() == 6  # of 250 tokens in blocks of 16


# Keyboard


def test_every_control_is_reached_by_tab_with_a_visible_focus(page: Any) -> None:
    stops = page.locator("button, input, summary, a").evaluate_all(NUMBER_VISIBLE)
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    reached, unseen = set(), []
    regions = page.locator("[tabindex='0']").count()  # tables that scroll
    for _ in range(stops + regions + 10):
        page.keyboard.press("Tab")
        stop, outline = page.evaluate(
            "[document.activeElement.dataset.stop, getComputedStyle(document.activeElement).outlineStyle]"
        )
        if stop is not None:
            reached.add(int(stop))
            if outline == "none":
                unseen.append(stop)
        if len(reached) == stops:
            break
    assert reached == set(range(stops))
    assert unseen == []


def test_buttons_answer_the_space_bar(page: Any) -> None:
    entry = page.locator("#admission-ratio .legend button", has_text="Random + compaction")
    entry.focus()
    page.keyboard.press("Space")
    settle(page, "admission-ratio")
    assert entry.get_attribute("aria-pressed") == "false"
    page.keyboard.press("Space")
    settle(page, "admission-ratio")
    assert entry.get_attribute("aria-pressed") == "true"


# The line of links


@pytest.mark.parametrize("width", ["opened", "narrow"])
def test_the_links_stay_in_sight_and_say_where_one_is(request: pytest.FixtureRequest, width: str) -> None:
    page = request.getfixturevalue(width).page
    for section in ("shapes", "admission"):
        page.locator(f"#{section}").evaluate("node => node.scrollIntoView({ behavior: 'instant' })")
        current = page.locator("nav a[aria-current='true']")
        current.and_(page.locator(f"[href='#{section}']")).wait_for()
        assert current.count() == 1
        box = current.bounding_box()
        assert 0 <= box["y"] <= 20
        assert 0 <= box["x"] <= page.viewport_size["width"] - 50
    page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")


# Widths, themes, paper


def test_a_phone_scrolls_down_only(narrow: Any) -> None:
    assert narrow.page.evaluate("document.documentElement.scrollWidth") == 390
    shown = ".chart svg.marks, .block-map-canvas svg, button, h1, h2, h3, p"
    edges = narrow.page.locator(shown).evaluate_all(OUTSIDE_WINDOW)
    assert edges == 0
    assert narrow.said == []


@pytest.mark.parametrize("width", ["opened", "narrow"])
def test_no_word_of_a_chart_is_cut_or_lies_on_another(request: pytest.FixtureRequest, width: str) -> None:
    page = request.getfixturevalue(width).page
    for name in FIGURES:
        assert page.locator(f"#{name} .chart svg.marks").evaluate(BAD_WORDS) == [], name


def test_long_tables_are_folded_where_rows_are_cards(narrow: Any) -> None:
    page = narrow.page
    long = page.locator("details.narrow")
    assert long.count() > 0
    assert not long.locator("tbody tr").first.is_visible()
    assert page.locator("section.card.wide > .scroll tbody tr").first.is_visible()  # a short one
    long.first.locator("summary").click()
    assert long.first.locator("tbody tr").first.is_visible()
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_function("[...document.querySelectorAll('details.narrow')].every((table) => table.open)")
    assert not long.first.locator("summary").is_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("![...document.querySelectorAll('details.narrow')].some((table) => table.open)")


def test_charts_fit_a_window_that_grows(narrow: Any) -> None:
    page = narrow.page
    width = "document.querySelector('#shapes-retained .chart svg.marks').getBoundingClientRect().width"
    before = page.evaluate(width)
    page.set_viewport_size({"width": 800, "height": 900})
    page.wait_for_function(f"{width} > {before + 200}")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(f"{width} <= {before}")


def lightness(page: Any, selector: str, attribute: str) -> int:
    """Return the sum of a colour's three channels."""
    colour = page.locator(selector).first.evaluate(f"node => getComputedStyle(node)['{attribute}']")
    return sum(int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])


def test_dark_follows_the_system_and_the_button_is_remembered(dark: Any) -> None:
    page = dark.page
    toggle = page.locator("#theme-toggle")
    axis = "#shapes-retained .chart svg .role-axis-title text"
    assert toggle.get_attribute("aria-pressed") == "true"
    assert lightness(page, "body", "backgroundColor") < 120
    assert lightness(page, axis, "fill") > 500
    dark_ink = page.locator("#shapes-retained .chart svg .mark-line path").first.get_attribute("stroke")
    toggle.click()
    settle(page, *FIGURES)
    assert lightness(page, "body", "backgroundColor") > 650
    assert lightness(page, axis, "fill") < 250
    assert (
        page.locator("#shapes-retained .chart svg .mark-line path").first.get_attribute("stroke") != dark_ink
    )
    page.reload()
    page.wait_for_selector("html[data-ready=true]")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    toggle.click()
    settle(page, *FIGURES)
    assert dark.said == []


def test_little_motion_is_respected(dark: Any, page: Any) -> None:
    scrolling = "getComputedStyle(document.documentElement).scrollBehavior"
    assert dark.page.evaluate(scrolling) == "auto"
    assert page.evaluate(scrolling) == "smooth"


def test_paper_is_light_even_from_a_dark_screen(dark: Any) -> None:
    page = dark.page
    page.emulate_media(media="print")
    assert lightness(page, "#shapes-retained", "backgroundColor") > 700
    assert lightness(page, "#shapes-retained .chart svg .role-axis-title text", "fill") < 200
    assert not page.locator("#theme-toggle").is_visible()
    page.emulate_media(media="screen")
