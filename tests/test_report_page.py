"""The page and the static figures as files, and the folders that they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
import report_tables

from kvreclaim.errors import InputError
from kvreclaim.report import render_page, write_figures
from kvreclaim.report.page import script_json


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_tables.write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_tables.write_audit(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="module")
def html(study: Path, audit: Path) -> str:
    return render_page([study, audit])


class Reader(HTMLParser):
    """Collects elements, attributes and the text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.data = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, _tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data
        elif self.elements[-1][1].get("id") == "page-data":
            self.data += data


def test_labels_from_files_show_as_text(html: str) -> None:
    read = Reader(html)
    assert sum(tag == "script" for tag, _ in read.elements) == 5
    assert report_tables.HOSTILE in read.text
    assert report_tables.FAULT in read.text
    assert "<script>alert" not in html
    maps = json.loads(read.data)["blockMaps"]["masks-map"]
    assert maps[2]["title"] == report_tables.HOSTILE


def test_nothing_in_the_data_can_end_its_script() -> None:
    text = script_json({"label": "</script><!--&\u2028\u2029"})
    assert not re.search(r"[<>&\u2028\u2029]", text)
    assert json.loads(text) == {"label": "</script><!--&\u2028\u2029"}


def test_the_page_loads_nothing_from_elsewhere(html: str) -> None:
    for tag, attributes in Reader(html).elements:
        assert "src" not in attributes
        if tag == "link":
            assert attributes["href"] == "data:,"
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_every_label_and_reference_has_its_target(html: str) -> None:
    elements = Reader(html).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes.get("aria-labelledby") for _, attributes in elements]
    targets += [
        str(attributes["href"])[1:]
        for tag, attributes in elements
        if tag == "a" and str(attributes["href"])[0] == "#"
    ]
    assert {target for target in targets if target} <= set(ids)


def test_charts_share_their_data_and_name_only_what_is_there(html: str) -> None:
    data = json.loads(Reader(html).data)
    used = {
        name
        for figure in data["figures"].values()
        for chart in figure["charts"].values()
        for name in chart["datasets"]
    }
    assert used == set(data["data"])


def test_kinds_and_spreads_are_those_of_the_rows_drawn(html: str) -> None:
    said = dict(
        re.findall(
            r'<figure class="card(?: wide)?" id="([\w-]+)".*?<p class="evidence">(.*?)</p>', html, re.DOTALL
        )
    )
    spans = {name: re.findall("<span>(.*?)</span>", words) for name, words in said.items()}
    spread = "± population standard deviation"
    assert spans["strategies-fragmentation"] == ["simulated, n = 30", spread]
    assert spans["strategies-tradeoff"] == ["simulated, n = 30", spread]
    assert spans["shapes-reclaim"] == ["simulated, n = 30", "closed form", spread]
    assert spans["bound-reclaim"] == ["closed form"]
    assert spans["masks-tables"] == ["measured, n = 2", spread]


def test_equal_folders_give_equal_pages(study: Path, audit: Path, html: str) -> None:
    assert render_page([study, audit]) == html


def test_two_audits_keep_their_ids_apart(audit: Path, tmp_path: Path) -> None:
    page = render_page([audit, report_tables.write_audit(tmp_path / "other", ("h2o",))])
    ids = [attributes["id"] for _, attributes in Reader(page).elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert "Keep masks of tiny-model, audited (other)" in page


def test_figures_are_written_twice_alike_and_leave_other_files(audit: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    names = write_figures(audit, tmp_path)
    assert names == ["masks-tables.svg", "masks-tables.png", "masks-remedies.svg", "masks-remedies.png"]
    first = {name: (tmp_path / name).read_bytes() for name in names}
    assert first["masks-tables.png"].startswith(b"\x89PNG")
    assert b"&lt;script&gt;alert(1)" in first["masks-tables.svg"]
    write_figures(audit, tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in names} == first
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_a_study_folder_gives_its_figures(study: Path, tmp_path: Path) -> None:
    names = {name.removesuffix(".svg") for name in write_figures(study, tmp_path) if name.endswith(".svg")}
    assert {"bound-reclaim", "shapes-cluster-length", "strategies-tradeoff", "admission-ratio"} <= names
    assert len(names) == 17


# Folders that are refused


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _put(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def _without_column(folder: Path) -> None:
    table = pl.read_csv(folder / "results_summary.csv", infer_schema_length=None)
    table.drop("metric").write_csv(folder / "results_summary.csv")


def _alter_block_map(folder: Path, key: str, value: object) -> None:
    file = folder / "interactive_data.json"
    data = json.loads(file.read_text())
    data["block_maps"][0]["frames"][0][key] = value
    file.write_text(json.dumps(data))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(_remove("run.json"), id="no-run"),
        pytest.param(_remove("results_summary.csv"), id="no-table"),
        pytest.param(_remove("interactive_data.json"), id="no-block-maps"),
        pytest.param(_put("run.json", "{"), id="half-a-run"),
        pytest.param(_put("run.json", "[]"), id="a-list-for-a-run"),
        pytest.param(_put("run.json", '{"schema": 2, "command": "reproduce"}'), id="another-schema"),
        pytest.param(_put("run.json", '{"schema": 1}'), id="no-command"),
        pytest.param(_put("run.json", '{"schema": 1, "command": "bake"}'), id="another-command"),
        pytest.param(_put("run.json", '{"schema": 1, "command": "reproduce", "kinds": 3}'), id="odd-kinds"),
        pytest.param(_put("results_summary.csv", ""), id="an-empty-table"),
        pytest.param(_put("results_summary.csv", "a,b\n1,2\n"), id="another-table"),
        pytest.param(_put("published.csv", "id,published\n\x00\n"), id="a-broken-table"),
        pytest.param(_put("interactive_data.json", '{"block_maps": [{}]}'), id="an-empty-block-map"),
        pytest.param(_put("interactive_data.json", '{"block_maps": 3}'), id="a-number-for-block-maps"),
        pytest.param(_without_column, id="a-column-short"),
        pytest.param(lambda folder: _alter_block_map(folder, "keep", "00"), id="a-mask-too-short"),
        pytest.param(lambda folder: _alter_block_map(folder, "keep", "zz" * 64), id="a-mask-not-hex"),
        pytest.param(lambda folder: _alter_block_map(folder, "share", "0"), id="a-share-too-short"),
        pytest.param(
            lambda folder: _alter_block_map(folder, "compaction", {"freed_blocks": 1, "moves": [[0, 512]]}),
            id="a-move-outside",
        ),
    ],
)
def test_an_alien_folder_is_refused_in_one_line(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(report_tables.write_study(tmp_path))
    with pytest.raises(InputError) as refused:
        render_page([tmp_path])
    message = str(refused.value)
    assert "\n" not in message
    assert str(tmp_path) in message
    assert re.search(r"\b(pass|run)\b", message)


def test_a_section_is_left_out_where_its_experiment_is_absent(tmp_path: Path) -> None:
    folder = report_tables.write_study(tmp_path)
    table = pl.read_csv(folder / "results_summary.csv", infer_schema_length=None)
    without = ~pl.col("experiment").is_in(["admission"]) & ~pl.col("experiment").str.starts_with("frontier/")
    table.filter(without).write_csv(folder / "results_summary.csv")
    ids = {attributes.get("id") for _, attributes in Reader(render_page([folder])).elements}
    assert {"blocks", "bound", "shapes", "correlation", "compaction", "published"} <= ids
    assert ids.isdisjoint({"admission", "strategies"})


def test_missing_folders_files_and_nothing_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a-file"
    file.write_text("")
    for folders, state in (
        ([tmp_path / "none"], "does not exist"),
        ([file], "is a file"),
        ([], "no results folder"),
    ):
        with pytest.raises(InputError, match=state):
            render_page(folders)


def test_an_audit_without_rows_is_refused(tmp_path: Path) -> None:
    folder = report_tables.write_audit(tmp_path)
    pl.read_csv(folder / "audit.csv").clear().write_csv(folder / "audit.csv")
    with pytest.raises(InputError, match="has no rows"):
        render_page([folder])
