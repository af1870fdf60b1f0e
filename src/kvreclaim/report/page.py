"""The page: sections of results folders as one HTML file that needs no network.

Everything is in the file: the Vega bundle once, every figure's charts as specifications, their data as tables
that charts share, the block maps, style and scripts. All text from folders is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import PurePath
from typing import Any

import vl_convert
from jinja2 import Environment
from markupsafe import Markup

from kvreclaim.report.figures import VEGA_LITE
from kvreclaim.report.folder import Folder
from kvreclaim.report.references import REFERENCES
from kvreclaim.report.registry import sections
from kvreclaim.report.section import BlockMaps, Control, Figure, Item, Notes, Section, Table
from kvreclaim.report.theme import DARK, LIGHT, SERIES, look
from kvreclaim.results import utf8

TITLE = "How much memory does KV cache compression give back?"
_SHAPES = {
    "circle": "M12 1.5a4.5 4.5 0 1 1 0 9a4.5 4.5 0 1 1 0-9Z",
    "square": "M7.5 1.5h9v9h-9Z",
    "diamond": "M12 .5l4.4 5.5l-4.4 5.5l-4.4-5.5Z",
    "triangle-up": "M12 1l5.2 9.6h-10.4Z",
    "cross": "M10.2 1h3.6v3.2h3.2v3.6h-3.2v3.2h-3.6v-3.2h-3.2v-3.6h3.2Z",
    "stroke": "M1 5h22v2h-22Z",
}
_UNSAFE_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render_page(folders: Sequence[str | PathLike[str]]) -> str:
    """Return the page of results folders, in any order; each gives its sections.

    Parameters
    ----------
    folders
        Results folders of kvreclaim's commands.

    Returns
    -------
    str
        One HTML document, all Unicode; equal folders give equal pages.

    Raises
    ------
    InputError
        When a folder is missing, is not kvreclaim's, or no section reads it.
    """
    read = [Folder(folder) for folder in folders]
    built = sections(read)
    charts = _Charts.of(built)
    template = Environment(autoescape=True, trim_blocks=True).from_string(_asset("page.html.jinja"))
    page = template.render(
        title=TITLE,
        summary=_summary(read),
        key_numbers=[key for section in built for key in section.key_numbers],
        sections=[_section(section, charts) for section in built],
        runs=[_run(folder) for folder in read],
        style=Markup(_asset("page.css") + _ink_css()),  # noqa: S704  # the package's own files
        bundle=Markup(_bundle()),  # noqa: S704  # vl-convert's
        block_map_script=Markup(_asset("block_map.js")),  # noqa: S704
        page_script=Markup(_asset("page.js")),  # noqa: S704
        data=Markup(script_json(_data(built, charts))),  # noqa: S704  # escaped by script_json
    )
    return utf8(page).decode()


def script_json(value: Any) -> str:
    """Return JSON that can stand in a ``<script>`` element: no character of it can end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escaped in _UNSAFE_IN_SCRIPT.items():
        text = text.replace(character, escaped)
    return text


def _asset(name: str) -> str:
    return resources.files("kvreclaim.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _bundle() -> str:
    """Return Vega, Vega-Lite, Vega-Embed and its tooltips as one script."""
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    return script.replace("</script", "<\\/script")


def _css_name(key: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in key)


def _ink_css() -> str:
    """Return a custom property for each series' colour, for the legends' swatches."""
    light = "".join(f"--ink-{_css_name(key)}:{LIGHT.ink[key]};" for key in SERIES)
    dark = "".join(f"--ink-{_css_name(key)}:{DARK.ink[key]};" for key in SERIES)
    return f':root{{{light}}}@media screen{{:root[data-theme="dark"]{{{dark}}}}}'


def _summary(folders: Sequence[Folder]) -> list[str]:
    """Return the page's first paragraphs: what it is about, and what its numbers are."""
    kinds = list(dict.fromkeys(kind for folder in folders for kind in folder.run.get("kinds", [])))
    missing = (
        ""
        if "observed" in kinds
        else " None of them was observed in a running serving engine, and none is a speed."
    )
    study = REFERENCES["study"]
    reproduced = (
        f" Reproduced here is a published study, “{study.title}” ({study.where})."
        if any(folder.command == "reproduce" for folder in folders)
        else ""
    )
    return [
        "Compressing the KV cache drops tokens; a serving runtime gives memory back in whole blocks. What "
        "counts is the number of blocks left without a survivor, and that depends on where the survivors "
        f"lie and on how many heads share a block table.{reproduced}",
        f"Every number says what it is: {', '.join(kinds)}.{missing} Point at a mark for its exact "
        "value and spread, press a legend entry to hide a series, or open the table under a figure.",
    ]


def _run(folder: Folder) -> dict[str, str]:
    """Return a folder's provenance in words; of paths only the last part."""
    run = folder.run
    parameters = {key: value for key, value in run.get("parameters", {}).items() if value is not None}
    return {
        "folder": folder.path.resolve().name,
        "command": f"kvreclaim {folder.command}",
        "created": str(run.get("created", "")),
        "kinds": ", ".join(run.get("kinds", [])),
        "parameters": "; ".join(f"{key}: {_words(value)}" for key, value in parameters.items()),
        "versions": ", ".join(f"{name} {version}" for name, version in run.get("versions", {}).items()),
    }


def _words(value: Any) -> str:
    """Return a parameter in words; of many records only their number."""
    if isinstance(value, list):
        if any(isinstance(item, dict) for item in value):
            return f"{len(value)} record{'' if len(value) == 1 else 's'}"
        return ", ".join(_words(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items() if item not in (None, []))
    return PurePath(value).name if isinstance(value, str) else str(value)


def _section(section: Section, charts: _Charts) -> dict[str, Any]:
    """Return a section as the template reads it; controls of several figures stand above them all."""
    narrow = [figure for figure in section.figures if not figure.wide]
    uses = [control for figure in section.figures for control in figure.controls if len(control.options) > 1]
    shared = [control for control in dict.fromkeys(uses) if uses.count(control) > 1]
    return {
        "id": section.id,
        "title": section.title,
        "provenance": section.provenance,
        "prose": section.prose,
        "shared": shared,
        "parts": [_item(item, shared, charts) for item in section.items],
        "notes_beside": len(narrow) % 2 == 1,
        "references": [REFERENCES[key] for key in section.sources],
    }


def _item(item: Item, shared: list[Control], charts: _Charts) -> dict[str, Any]:
    """Return an item as the template reads it."""
    if isinstance(item, Notes):
        return {"kind": "notes", "title": item.title, "texts": item.texts}
    words = {"id": item.id, "title": item.title, "caption": item.caption}
    if isinstance(item, Figure):
        own = [control for control in item.controls if control not in shared and len(control.options) > 1]
        legend = [_legend_entry(key) for key in item.series]
        return {
            **words,
            "kind": "figure",
            "controls": own,
            "series": legend,
            "evidence": charts.evidence(item),
            "wide": item.wide,
        }
    if isinstance(item, BlockMaps):
        shares = any("share" in frame for block_map in item.maps for frame in block_map["frames"])
        titles = [block_map["title"] for block_map in item.maps[:: max(1, len(item.views))]]
        return {**words, "kind": "block_maps", "titles": titles, "views": item.views, "shares": shares}
    return {
        **words,
        "kind": "table",
        "columns": item.columns,
        "numeric": item.numeric,
        "folded": item.folded,
        "rows": _table_rows(item),
    }


def _legend_entry(key: str) -> dict[str, Any]:
    series = look(key)
    return {
        "key": key,
        "ink": f"var(--ink-{_css_name(key)})" if key in SERIES else series.light,
        "label": series.label,
        "dash": " ".join(str(length) for length in series.dash),
        "path": "" if series.dash and series.shape == "stroke" else _SHAPES[series.shape],
    }


def _table_rows(table: Table) -> list[list[tuple[str, str]]]:
    """Return a table's cells, each with its CSS class."""
    rows = []
    for place, row in enumerate(table.rows):
        looks = ["number" if column in table.numeric else "" for column in range(len(row))]
        if table.tones:
            looks[-1] = f"tone-{table.tones[place]}"
        rows.append(list(zip(row, looks, strict=True)))
    return rows


@dataclass
class _Charts:
    """All charts of a page as specifications, and their data: each table once, however many show it."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    specifications: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, built: Sequence[Section]) -> _Charts:
        """Draw every figure of the sections, for all values of its controls."""
        charts = cls()
        for figure in (figure for section in built for figure in section.figures):
            charts.specifications[figure.id] = {
                "/".join(values): charts.specification(figure, values) for values in figure.drawings
            }
        return charts

    def evidence(self, figure: Figure) -> list[str]:
        """Return kinds and counts of the rows drawn, closed forms last, then what their spread is."""
        names = {chart["datasets"][0]: None for chart in self.specifications[figure.id].values()}
        rows = [
            dict(zip(self.tables[name]["columns"], row, strict=True))
            for name in names
            for row in self.tables[name]["rows"]
        ]
        rows = [row for row in rows if row["role"] != "none"]
        found = {(row["kind"].startswith("closed form"), row["kind"], row["n"]): None for row in rows}
        kinds = [kind if n == "–" else f"{kind}, n = {n}" for _, kind, n in sorted(found)]
        varies = any(figure.spread[0] in f"{row['value']}{row['x_text']}" for row in rows)
        return [*kinds, figure.spread] if varies else kinds

    def specification(self, figure: Figure, values: tuple[str, ...]) -> dict[str, Any]:
        """Return a chart's specification, its data moved to the store; the main table's name comes first."""
        chart: dict[str, Any] = figure.drawings[values]("container", LIGHT).to_dict(validate=False)
        datasets: dict[str, list[dict[str, Any]]] = chart.pop("datasets")
        for name, rows in datasets.items():
            columns = list(rows[0]) if rows else []
            self.tables[name] = {
                "columns": columns,
                "rows": [[_short(row[column]) for column in columns] for row in rows],
            }
        del chart["config"]
        main = chart["data"]["name"]
        return {**chart, "datasets": sorted(datasets, key=lambda name: (name != main, name))}


def _short(value: Any) -> Any:
    """Return a float with as many digits as a chart can show; texts carry the exact value."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _data(built: Sequence[Section], charts: _Charts) -> dict[str, Any]:
    """Return everything that the scripts read."""
    figures = {
        figure.id: {
            "controls": [{"id": control.id, "first": control.values[0]} for control in figure.controls],
            "charts": charts.specifications[figure.id],
        }
        for section in built
        for figure in section.figures
    }
    maps: Mapping[str, Any] = {
        item.id: item.maps for section in built for item in section.items if isinstance(item, BlockMaps)
    }
    themes = {
        theme.name: {
            "config": {**theme.config, "background": "transparent", "legend": {"disable": True}},
            "ink": theme.ink,
        }
        for theme in (LIGHT, DARK)
    }
    return {"themes": themes, "data": charts.tables, "figures": figures, "blockMaps": maps}
