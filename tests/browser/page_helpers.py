"""What the tests of the page in Chromium share."""

from __future__ import annotations

from typing import Any

FIGURES = [
    "bound-reclaim",
    "bound-efficiency",
    "shapes-reclaim",
    "shapes-block-size",
    "shapes-retained",
    "shapes-cluster-length",
    "shapes-compaction",
    "strategies-reclaim",
    "strategies-tradeoff",
    "strategies-fragmentation",
    "strategies-ratio",
    "correlation-reclaim",
    "compaction-sources",
    "compaction-slots-per-move",
    "compaction-moves",
    "admission-half",
    "admission-ratio",
    "masks-tables",
    "masks-remedies",
    "measured-tradeoff",
    "measured-copies",
    "measured-matched",
    "measured-needles",
    "measured-saving",
    "measured-block-size",
    "observed-free",
    "observed-running",
    "advice-tradeoff",
]


def chart_text(page: Any, name: str) -> str:
    return str(page.locator(f"#{name} .chart").inner_text())


def settle(page: Any, *names: str) -> None:
    """Wait until the figures have drawn what was pressed."""
    for name in names:
        page.wait_for_selector(f"#{name}:not([aria-busy])")


def values(page: Any, name: str) -> list[list[str]]:
    """Return the figure's table of values, opened and closed again."""
    summary = page.locator(f"#{name} details summary")
    summary.click()
    lines = page.locator(f"#{name} details table tbody tr")
    lines.first.wait_for()
    table = [line.split("\t") for line in lines.all_inner_texts()]
    summary.click()
    return table


def tooltip(page: Any, x: float, y: float) -> str:
    page.mouse.move(x - 3, y)
    page.mouse.move(x, y)
    shown = page.locator("#vg-tooltip-element.visible")
    shown.wait_for()
    return " ".join(shown.inner_text().split())
