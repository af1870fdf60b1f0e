"""The examples of docs/kvpress.md run as they stand."""

import re
from pathlib import Path

import numpy as np
import pytest
from small_models import prefill, prose, random_ids, smollm2, tiny_llama, transformers

from kvreclaim import KeepMask, audit
from kvreclaim.capture.fetch.store import models_folder

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "kvpress.md").read_text()
BESIDE_A_PRESS, ELSEWHERE = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_evaluation_gets_its_physical_row(in_folder):
    smollm2()  # skips where it was not fetched
    code = BESIDE_A_PRESS.replace(
        "HuggingFaceTB/SmolLM2-135M-Instruct", str(models_folder() / "smollm2-135m")
    )
    rows = [
        {"context": prose()[start : start + 1500], "question": "What is this about?"} for start in (0, 9000)
    ]
    names = {"rows": rows}
    exec(code, names)  # noqa: S102  # the documentation's own code
    again = names["pipe"](rows[0]["context"], question=rows[0]["question"], press=names["press"])
    assert again["answer"] == rows[0]["answer"]
    for number, row in enumerate(rows):
        mask = KeepMask.load(in_folder / f"snapkv-{number}.npz")
        assert (mask.layers, mask.kv_heads) == (30, 3)
        assert mask.metadata.ratio == 0.5
        assert row["retained"] == pytest.approx(0.5, abs=0.01)
        assert row["physical_reclaim"] == audit(mask).physical_reclaim
        assert row["answer"]


def test_the_example_is_short():
    assert len([line for line in BESIDE_A_PRESS.splitlines() if line.strip()]) < 15


def test_masks_made_elsewhere_are_saved(in_folder):
    kept = [[[0, 5], [1]], [[2], []]]
    exec(ELSEWHERE, {"layers": 2, "kv_heads": 2, "tokens": 6, "kept": kept})  # noqa: S102  # as above
    mask = KeepMask.load(in_folder / "mine.npz", "mine")
    assert np.argwhere(mask.array).tolist() == [[0, 0, 0], [0, 0, 5], [0, 1, 1], [1, 0, 2]]
    assert mask.metadata.model == "my-model"


@pytest.mark.parametrize("name", ["README.md", "docs/remedy.md"])
def test_a_remedy_is_one_line_more(name):
    found = re.findall(r"^```python\n(.*?)^```$", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)
    (code,) = [example for example in found if "BlockJointPress" in example]
    assert len([line for line in code.splitlines() if line.strip()]) < 5
    names = {}
    exec(code, names)  # noqa: S102  # the documentation's own code
    cache = transformers.DynamicCache()
    with names["press"](tiny_llama()):
        prefill(tiny_llama(), random_ids(240), cache)
    assert [layer.keys.shape[2] for layer in cache.layers] == [120] * 3
