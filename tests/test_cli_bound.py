"""``kvreclaim bound``: closed forms against brute force and hand-worked values."""

import json
from itertools import combinations
from math import comb

import pytest
from command_line import call

IDS = [
    *("independent", "random", "independent_heads", "worst", "best", "streaming_llm", "h2o", "snapkv"),
    "moves",
]


def bounds(*arguments):
    answer = call("bound", *arguments, "--json", "-")
    assert answer.status == 0, answer.err
    rows = json.loads(answer.out)
    assert [list(row) for row in rows] == [["id", "quantity", "value", "unit", "formula", "kind"]] * len(IDS)
    assert [row["id"] for row in rows] == IDS
    assert {row["kind"] for row in rows} == {"closed form"}
    return {row["id"]: row["value"] for row in rows}


def test_defaults_are_half_of_8192_tokens_in_blocks_of_16():
    found = bounds()
    assert found["independent"] == found["independent_heads"] == 0.5**16
    assert found["random"] == pytest.approx(comb(8192 - 16, 4096 - 16) / comb(8192, 4096), rel=1e-12)
    assert (found["worst"], found["best"]) == (0.0, 0.5)
    assert found["streaming_llm"] == (4100 // 16 - 1) / 512  # 4 sinks hold the first block
    assert found["moves"] == pytest.approx(1646.21, abs=0.01)


def test_every_eviction_of_a_small_request():
    tokens, evicted, size = 12, 8, 3
    freed = [
        sum({*range(start, start + size)} <= {*dead} for start in range(0, tokens, size)) / 4
        for dead in combinations(range(tokens), evicted)
    ]
    found = bounds("--tokens", tokens, "--ratio", evicted / tokens, "--block-size", size)
    assert found["random"] == pytest.approx(sum(freed) / len(freed), rel=1e-12)
    assert (found["worst"], found["best"]) == (min(freed), max(freed))


def test_heads_and_layers_that_evict_on_their_own():
    found = bounds("--ratio", "0.9", "--block-size", "2", "--heads", "3", "--layers", "2")
    assert found["independent"] == pytest.approx(0.9**2)
    assert found["independent_heads"] == pytest.approx(0.9**12)


@pytest.mark.parametrize(("ratio", "reclaim"), [("0", 0.0), ("1", 1.0)])
def test_nothing_and_everything_evicted(ratio, reclaim):
    found = bounds("--ratio", ratio)
    assert found.pop("moves") == 0
    assert set(found.values()) == {reclaim}


@pytest.mark.parametrize("tokens", ["1", "15", "17", "1" + "0" * 24])
def test_odd_lengths(tokens):
    found = bounds("--tokens", tokens)
    assert 0 <= found["worst"] <= found["random"] <= found["best"] <= 1


def test_the_table_says_what_was_asked_and_has_every_row():
    out = call("bound", "--ratio", "0.125", "--tokens", "100000", "--block-size", "8").out
    assert out.startswith("12.5% of 100,000 tokens evicted, blocks of 8: freed with zero copies")
    rows = out.rpartition("─")[2]
    assert "Closed forms: nothing is simulated or measured." in rows
    for label in "each token evicted", "exactly k", "StreamingLLM", "H2O", "SnapKV", "at worst", "at best":
        assert label in rows
    assert "nan" not in rows


def test_json_to_a_file_leaves_the_table_on_stdout(tmp_path):
    answer = call("bound", "--json", tmp_path / "bound.json")
    assert (answer.status, answer.err, answer.out) == (0, "", call("bound").out)
    assert (tmp_path / "bound.json").read_text() == call("bound", "--json", "-").out
