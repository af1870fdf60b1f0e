"""Policies measured as a runtime attends to them that can only drop whole blocks."""

import csv

import numpy as np
import pytest
import tiny_model
from small_models import tiny_llama

from kvreclaim import BlockLayout, InputError, KeepMask, audit
from kvreclaim.capture.measure.effective import attended
from kvreclaim.capture.measure.run import measure
from kvreclaim.capture.measure.settings import Settings
from kvreclaim.effective import effective_mask

LAYOUT = BlockLayout(8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("effective")
    (root / "text").write_text(tiny_model.text(1000))
    out = root / "out"
    policies = (
        "snapkv",
        "streaming-llm",
        "effective:block_size=8:streaming-llm",
        "effective:block_size=8:snapkv",
    )
    model = str(tiny_model.save(tiny_llama(), root / "llama"))
    texts = (str(root / "text"),)
    measure(Settings(model, policies, (0.5, 0.9), 160, 1, 24, texts, block_sizes=(8,)), out)
    return out


def rows(folder, policy):
    with (folder / "measured.csv").open() as file:
        return [
            row for row in csv.DictReader(file) if row["policy"] == policy and row["block_tables"] == "shared"
        ]


@pytest.mark.parametrize("press", ["snapkv", "streaming-llm"])
def test_the_same_blocks_are_free_and_more_is_attended(folder, press):
    asked, seen = rows(folder, press), rows(folder, f"effective:block_size=8:{press}")
    assert [row["physical_reclaim"] for row in asked] == [row["physical_reclaim"] for row in seen]
    assert all(
        float(one["retained"]) <= float(other["retained"]) for one, other in zip(asked, seen, strict=True)
    )


def test_masks_are_the_effective_ones(folder):
    for file in (folder / "masks" / "prompt-1").glob("ratio-*/effective+block_size=8+*.npz"):
        asked = KeepMask.load(file.with_name(file.name.rpartition("+")[2]))
        seen = KeepMask.load(file)
        assert np.array_equal(seen.array, effective_mask(asked, LAYOUT).array)
        assert audit(seen, LAYOUT).stranded in (0, None)
        assert seen.name.startswith("effective:block_size=8:")


def test_nothing_evicted_in_effect_does_no_harm(folder):
    whole = [row for row in rows(folder, "effective:block_size=8:snapkv") if float(row["retained"]) == 1]
    assert whole
    for row in whole:
        assert float(row["kl"]) == pytest.approx(0, abs=1e-9)
        assert float(row["top1"]) == 1
    assert any(float(row["retained"]) < 1 for row in rows(folder, "effective:block_size=8:streaming-llm"))


def test_names():
    assert attended("snapkv").press == "snapkv"
    assert attended("snapkv").layout is None
    assert attended("effective:adakv:alpha_safeguard=0.1:snapkv").press == "adakv:alpha_safeguard=0.1:snapkv"
    assert attended("effective:knorm").layout == BlockLayout(16)
    assert attended("effective:block_size=32:chunkkv:chunk_length=16:snapkv").layout == BlockLayout(32)
    for wrong in (
        "effective",
        "effective:block_size=8",
        "effective:blocks=8:snapkv",
        "effective:block_size=0:snapkv",
    ):
        with pytest.raises(InputError):
            attended(wrong)
