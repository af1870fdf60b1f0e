"""Tables and totals of the observed ledger."""

import csv
import json

import numpy as np
import pytest

from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm import ledger
from kvreclaim.runtimes.vllm.records import EvictionRecord, ObservedRun, StepRecord


def step(number, free=9):
    return StepRecord(number, free, scheduled=2, running=1, waiting=3, preemptions=number // 4)


def eviction(number, seconds):
    counts = dict.fromkeys(
        ("kept", "held", "kept_pairs", "attended_pairs", "dead_pairs", "blocks_before", "runs"), 1
    )
    return EvictionRecord(
        step=number,
        request="1",
        event=0,
        policy="knorm",
        mode="pack",
        budget=8,
        computed_tokens=20,
        tokens=20,
        blocks_freed=3,
        moved_pairs=5,
        moved_bytes=40,
        score_seconds=seconds / 2,
        seconds=seconds / 2,
        asked=np.ones((1, 1, 20), np.bool_),
        **counts,
    )


def rows(file):
    with file.open() as text:
        return list(csv.DictReader(text))


def test_tables_come_in_parts_and_hold_every_record_once(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "PART", 4)
    (tmp_path / "steps-007.csv").write_text("of a longer run before")
    book = ledger.Ledger(str(tmp_path))
    book.start()
    for number in range(1, 11):
        book.add_step(step(number), None, at_rest=number == 10)
    parts = sorted(tmp_path.glob("steps-*.csv"))
    assert [file.name for file in parts] == ["steps-000.csv", "steps-001.csv", "steps-002.csv"]
    read = [row for file in parts for row in rows(file)]
    assert [int(row["step"]) for row in read] == list(range(1, 11))
    assert {row["free_blocks"] for row in read} == {"9"}


def test_totals_are_sums(tmp_path):
    book = ledger.Ledger(str(tmp_path))
    book.start()
    assert ledger.read_counters(str(tmp_path)) == ledger.Counters()
    for seconds in (0.0015, 0.3, 100.0):
        book.add_eviction(eviction(1, seconds))
    book.add_step(step(1), 0.25, at_rest=True)
    counters = ledger.read_counters(str(tmp_path))
    assert (counters.blocks_freed, counters.pairs_moved, counters.bytes_moved, counters.evictions) == (
        9,
        15,
        120,
        3,
    )
    assert counters.seconds == 100.3015
    assert counters.stranded_ratio == 0.25
    assert dict(zip(ledger.BUCKETS, counters.buckets, strict=True)) == {
        end: sum(seconds <= end for seconds in (0.0015, 0.3, 100.0)) for end in ledger.BUCKETS
    }
    assert "asked" not in rows(tmp_path / "evictions-000.csv")[0]
    assert json.loads((tmp_path / "counters.json").read_text())["evictions"] == 3


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    book = ledger.Ledger(None)
    book.start()
    book.add_eviction(eviction(1, 0.1))
    book.add_step(step(1), None, at_rest=True)
    assert book.counters.evictions == 1
    assert not list(tmp_path.iterdir())
    assert ledger.read_counters(str(tmp_path)) == ledger.Counters()


def test_a_run_sums_up():
    steps = [step(1, free=4), step(2, free=10)]
    run = ObservedRun(steps, [eviction(1, 0.1), eviction(2, 0.1)], [], 10, 32, 1.0)
    assert run.summary() == {
        "peak_running": 2,
        "steps": 2,
        "blocks_freed": 6,
        "preemptions": 0,
        "free_blocks_end": 10,
    }
    assert run.moved_bytes == 80
    empty = ObservedRun([], [], [], 10, 32, 0.0)
    assert (empty.peak_running, empty.preemptions, empty.free_blocks_end) == (0, 0, 10)


def test_only_an_earlier_engine_s_tables_give_way(tmp_path):
    kept = ("steps-mine.csv", "evictions-2025.csv.bak", "notes-1.csv")
    for name in (*kept, "steps-000.csv", "evictions-1000.csv"):
        (tmp_path / name).write_text("a\n1\n")
    book = ledger.Ledger(str(tmp_path))
    assert (tmp_path / "steps-000.csv").exists()  # until the engine is there
    book.start()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, ledger.COUNTERS])
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="holds the results of a command; pass another folder"):
        ledger.Ledger(str(tmp_path))
