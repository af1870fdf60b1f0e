"""``kvreclaim bound``: closed forms against brute force and hand-worked values."""

import json
from itertools import accumulate, combinations
from math import ceil, comb, floor

import pytest
from command_line import call

IDS = ["independent", "random", "worst", "best", "streaming_llm", "h2o", "snapkv", "moves"]
KEYS = ["id", "quantity", "value", "unit", "formula", "kind"]


def answered(*arguments):
    answer = call("bound", *arguments, "--json", "-")
    assert answer.status == 0, answer.err
    rows = json.loads(answer.out)
    assert {tuple(row) for row in rows} == {tuple(KEYS)}
    assert [row["id"] for row in rows if row["id"] != "independent_heads"] == IDS
    assert {row["kind"] for row in rows} == {"closed form"}
    return rows


def bounds(*arguments):
    return {row["id"]: row["value"] for row in answered(*arguments)}


def test_defaults_are_half_of_8192_tokens_in_blocks_of_16():
    found = bounds()
    assert found["independent"] == 0.5**16
    assert "independent_heads" not in found
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


def choose(n, k):
    return comb(n, k) if n >= 0 and k >= 0 else 0


def evaluated(formula, tokens, evicted, size, window):
    """Evaluate a printed formula with the letters as the caption explains them."""
    kept, share = tokens - evicted, 0.5
    sinks = min(4, kept)
    letters = {"q": evicted / tokens, "B": size, "N": tokens, "n": ceil(tokens / size), "p": tokens % size}
    letters |= {"k": evicted, "S": kept, "w": window, "s": sinks, "M": tokens - window, "h": kept - window}
    letters |= {"r": kept / tokens, "f": share, "d": (1 - kept / tokens) / (1 - share * kept / tokens)}
    letters |= {"c": 12, "H": 3, "L": 2, "best": bounds_best(tokens, evicted, size)}
    signs = {"^": "**", "·": "*", "f r": "f*r", "[": "(", "]": ")", ") C": ") * C", ") d": ") * d"}
    for sign, operator in signs.items():
        formula = formula.replace(sign, operator)
    functions = {"floor": floor, "ceil": ceil, "C": choose, "min": min, "max": max}
    return eval(formula, functions | letters)  # noqa: S307  # the formulas of this package


def bounds_best(tokens, evicted, size):
    lengths = sorted(min(size, tokens - start) for start in range(0, tokens, size))
    return sum(total <= evicted for total in accumulate(lengths)) / len(lengths)


@pytest.mark.parametrize(
    ("tokens", "evicted", "size"),
    [(8192, 4096, 16), (20, 10, 16), (20, 2, 16), (20, 20, 16), (100, 97, 8), (17, 16, 16), (64, 60, 16)],
)
def test_every_formula_gives_its_number(tokens, evicted, size):
    options = ["--tokens", tokens, "--ratio", evicted / tokens, "--block-size", size]
    options += ["--heads", 3, "--layers", 2]
    kept = tokens - evicted
    windows = {"streaming_llm": kept - min(4, kept), "h2o": kept // 2}
    for row in answered(*options):
        if row["id"] != "moves":  # a minimum over a law's expectations: tests/test_bounds.py has it
            value = evaluated(row["formula"], tokens, evicted, size, windows.get(row["id"], 0))
            assert row["value"] == pytest.approx(value, rel=1e-12), row


@pytest.mark.parametrize("tokens", [17, 20, 40, 800])
@pytest.mark.parametrize("ratio", [0.05, 0.5, 0.9])
def test_no_estimate_is_beyond_the_best(tokens, ratio):
    found = bounds("--tokens", tokens, "--ratio", ratio)
    assert found["snapkv"] <= found["best"]


def test_the_caption_explains_the_letters():
    text = " ".join(call("bound", "--tokens", "20", "--heads", "2").out.split())
    for letter in (
        "q ratio",
        "p = N mod B",
        "w window",
        "s sinks",
        "M = N - w",
        "h = S - w",
        "c tokens",
        "H heads",
    ):
        assert letter in text
    assert "p = " not in call("bound").out
    assert "heads" not in call("bound").out


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


def test_one_token_is_one_token():
    assert call("bound", "--tokens", "1").out.startswith("50% of 1 token evicted, blocks of 16")
