"""A ledger as a small HTML table, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

_ROWS = (
    ("logical saving", "logical_saving", "{:.1%}"),
    ("physical reclaim, zero copies", "physical_reclaim", "{:.1%}"),
    ("free blocks", "free_blocks", "{:,}"),
    ("blocks", "blocks", "{:,}"),
    ("reclaim efficiency", "reclaim_efficiency", "{:.3f}"),
    ("fragmentation", "fragmentation", "{:.3f}"),
    ("stranded", "stranded", "{:.3f}"),
    ("bytes freed", "bytes_freed", "{:,}"),
)
_REMEDY_ROWS = (
    ("compaction: blocks it frees", "compaction", "freed_blocks", "{:,}"),
    ("compaction: tokens moved", "compaction", "moved_tokens", "{:,}"),
    ("packing: physical reclaim", "packing", "physical_reclaim", "{:.1%}"),
    ("packing: pairs moved", "packing", "moved_pairs", "{:,}"),
)


def ledger_html(ledger: Mapping[str, Any]) -> str:
    """Return the ledger (as `Ledger.to_dict` gives it) as an HTML table; its labels are escaped."""
    name = ledger["policy"] or "keep mask"
    title = f"{name}: {ledger['block_tables']} tables, blocks of {ledger['block_size']}"
    rows = [(label, ledger[key], form) for label, key, form in _ROWS]
    rows += [(label, ledger[remedy][key], form) for label, remedy, key, form in _REMEDY_ROWS]
    cells = "".join(
        f"<tr><th style='text-align:left'>{label}</th><td>{form.format(value)}</td></tr>"
        for label, value, form in rows
        if value is not None
    )
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"
