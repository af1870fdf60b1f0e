"""docs/json.md names every key of every command's JSON, and no other."""

import json
import re
from dataclasses import fields
from pathlib import Path

import observed_tables
import pytest
from command_line import alive, call, write_masks

from kvreclaim.runtimes.observation import Spread
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.study.published import Judged

TEXT = (Path(__file__).parents[1] / "docs" / "json.md").read_text()


def keys_of(title):
    """The keys in the first column of the first table after a title."""
    table = TEXT.partition(title)[2].partition("\n| --- |")[2].split("\n\n")[0]
    return {key for row in table.splitlines()[1:] for key in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.parametrize("command", ["bound", "runtimes"])
def test_lists_of_flat_objects(command):
    for row in json.loads(call(command, "--json", "-").out):
        assert set(row) == keys_of(f"## `{command}`")


def test_audit(tmp_path):
    masks = write_masks(tmp_path / "m.npz", m=alive(64, slice(0, 8)))
    for row in json.loads(call("audit", masks, "--json", "-").out):
        assert set(row) == keys_of("## `audit`")
        for part in "compaction", "packing":
            assert set(row[part]) == keys_of(f"\n`{part}`:")


def test_models_list():
    for row in json.loads(call("models", "list", "--json", "-").out):
        assert set(row) == keys_of("## `models list`")


def test_measure():
    pytest.importorskip("kvpress", reason="needs the extra: pip install 'kvreclaim[models]'")
    from kvreclaim.capture.matched.ledger import MatchedRow
    from kvreclaim.capture.measure.needles import NeedleRow
    from kvreclaim.capture.measure.run import Measurement
    from kvreclaim.capture.measure.tables import MatchedPromptRow, MeasuredRow

    kinds = (MeasuredRow, MatchedRow, MatchedPromptRow, NeedleRow)
    for part, kind in zip(fields(Measurement), kinds, strict=True):
        assert {field.name for field in fields(kind)} == keys_of(f"\n`{part.name}`:")


def test_observe():
    seen = observed_tables.observation(Options("none")).to_dict(observed_tables.SCENARIO)
    assert set(seen) == keys_of("## `observe`")
    for part in "observed", "predicted":
        assert set(seen[part]) == keys_of("\n`observed` and `predicted`:")
    assert {field.name for field in fields(Spread)} == keys_of("in its text, in nats:\n")


def test_calibrate_copy():
    options = ("--device", "cpu", "--way", "gather", "--rounds", 10)
    (found,) = json.loads(call("calibrate", "copy", *options, "--json", "-").out)
    assert set(found) == keys_of("## `calibrate copy`") - {"value", "low", "high"}
    for copy in found["copies"]:
        assert set(copy) == keys_of("\nA copy of `copies`:")


def test_reproduce():
    assert {field.name for field in fields(Judged)} == keys_of("## `reproduce`")


def test_advise():
    pytest.importorskip("torch", reason="needs the extra: pip install 'kvreclaim[models]'")
    from kvreclaim.advise.rows import AdviceRow

    assert {field.name for field in fields(AdviceRow)} == keys_of("## `advise`")
