"""Bytes that return to the GPU from pages, table by table and page by page."""

import json

import numpy as np
import pytest
from command_line import call, refused, write_masks
from hypothesis import given
from hypothesis import strategies as st

from kvreclaim.keep import KeepMask
from kvreclaim.layout import BLOCK_TABLES, BlockLayout, KVGeometry
from kvreclaim.report.folder import Folder
from kvreclaim.report.registry import sections
from kvreclaim.report.theme import LIGHT
from kvreclaim.returned import bytes_returned

GEOMETRY = KVGeometry("tiny", layers=2, kv_heads=3, head_dim=8)


@given(st.integers(0, 2**32 - 1), st.sampled_from(BLOCK_TABLES), st.integers(1, 40), st.integers(1, 4))
def test_pages_one_by_one(seed, tables, tokens, per_page):
    random = np.random.default_rng(seed)
    keep = random.random((2, 3, tokens)) < random.choice([0.02, 0.1, 0.5])
    heads = 1 if tables == "per_head" else 3
    page = per_page * 4 * heads * 8 * 2
    expected = 0
    for layer in range(2):
        for head in range(0, 3, heads):
            seen = {"shared": keep, "per_layer": keep[layer], "per_head": keep[layer, head]}[tables]
            live = seen.reshape(-1, tokens).any(axis=0)
            for start in range(0, -(-tokens // 4), per_page):
                if not live[4 * start : 4 * (start + per_page)].any():
                    expected += 2 * page  # keys and values of this layer
    assert bytes_returned(KeepMask(keep), BlockLayout(4, tables), GEOMETRY, page) == expected


def test_audit_says_what_returns(tmp_path):
    keep = np.zeros((30, 3, 1024), bool)
    keep[..., :300] = True  # 19 of 64 blocks live: of pages of 16 blocks two are held, two return
    file = write_masks(tmp_path / "m.npz", m=keep)
    page = 16 * 16 * 3 * 64 * 2
    options = ("--model", "smollm2-135m", "--block-tables", "shared", "--json", "-")
    (row,) = json.loads(call("audit", file, *options, "--page-size", page).out)
    assert (row["page_bytes"], row["bytes_returned"]) == (page, 2 * page * 2 * 30)
    assert row["bytes_returned"] < row["bytes_freed"]
    (row,) = json.loads(call("audit", file, *options).out)
    assert row["page_bytes"] is row["bytes_returned"] is None


def test_pages_have_their_section(tmp_path):
    keep = np.zeros((30, 3, 1024), bool)
    keep[..., :300] = True
    file = write_masks(tmp_path / "m.npz", m=keep)
    page = 16 * 16 * 3 * 64 * 2
    call("audit", file, "--model", "smollm2-135m", "--page-size", page, "--out", tmp_path / "out")
    found = {section.id: section for section in sections([Folder(tmp_path / "out")])}
    (figure,) = found["pages"].figures
    chart = figure.default(400, LIGHT).to_dict()
    drawn = chart["datasets"][chart["data"]["name"]]
    assert [row["series"] for row in drawn] == ["page-full", "page-pinned", "page-returned", "page-returned"]
    assert "0 of 1 policies return no page" in found["pages"].prose[1]
    call("audit", file, "--out", tmp_path / "without")
    assert "pages" not in {section.id for section in sections([Folder(tmp_path / "without")])}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--page-size", "2MiB"], ["--model"]),
        (["--page-size", "two", "--model", "smollm2-135m"], ["--page-size"]),
        (["--page-size", "0", "--model", "smollm2-135m"], ["--page-size"]),
        (["--page-size", "1000", "--model", "smollm2-135m"], ["whole blocks"]),
    ],
)
def test_bad_pages(tmp_path, arguments, words):
    file = write_masks(tmp_path / "m.npz", m=np.ones((30, 3, 64), bool))
    refused(call("audit", file, *arguments), *words)
