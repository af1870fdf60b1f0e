"""``kvreclaim calibrate copy``: tables, JSON, refusals."""

import json

import pytest
from command_line import call, refused

from kvreclaim.runtimes import copying


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Copies of a few KiB, so that the test is about what is printed."""
    monkeypatch.setattr(copying, "open_device", lambda name, real=copying.open_device: real(name, 1 << 20))
    monkeypatch.setattr(copying, "POINTS", dict.fromkeys(copying.POINTS, ((16384, 65536), (1, 4, 16, 32))))


def test_tables_and_json_say_the_same():
    answer = call("calibrate", "copy", "--device", "cpu", "--json", "-")
    assert answer.status == 0, answer.err
    slices, gather, *packs = json.loads(answer.out)
    assert [one["way"] for one in packs] == list(copying.ways("cpu")[2:])
    assert [(one["device"], one["way"], one["kind"]) for one in (slices, gather)] == [
        ("cpu", "slices", "measured"),
        ("cpu", "gather", "measured"),
    ]
    assert len(slices["copies"]) == 8
    for one in (slices, gather):
        for constant in ("fixed_seconds", "seconds_per_run", "bytes_per_second"):
            assert set(one[constant]) == {"value", "low", "high"}
        fixed, per_run = one["fixed_seconds"]["value"], one["seconds_per_run"]["value"]
        per_byte = 1 / one["bytes_per_second"]["value"] if one["bytes_per_second"]["value"] else 0
        for copy in one["copies"]:
            fitted = fixed + per_run * copy["runs"] + per_byte * copy["moved_bytes"]
            assert copy["fitted_seconds"] == pytest.approx(fitted)
            assert copy["rounds"] == 11
    assert "What a copy costs on this machine" in answer.err
    assert "medians of 11 interleaved pairs" in answer.err
    assert all(len(line) <= 80 for line in answer.err.splitlines())


def test_one_way_on_one_device():
    answer = call("calibrate", "copy", "--device", "cpu", "--way", "gather", "--rounds", 10)
    assert answer.status == 0, answer.err
    assert "gather" in answer.out
    assert "slices" not in answer.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--way", "fly"), ("way 'fly' is not here", "slices, gather")),
        (("--device", "abacus"), ("device 'abacus' is not here", "cpu")),
        (("--rounds", 3), ("rounds is 3", "at least 10")),
        (("--json", "no/such/folder.json"), ("no/such/folder.json",)),
    ],
)
def test_bad_input_is_one_line(options, words):
    refused(call("calibrate", "copy", *options), *words)
