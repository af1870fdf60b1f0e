"""``kvreclaim audit``: its options, its JSON, its table, its results folder. Expected numbers are by hand."""

import csv
import json
import re

import numpy as np
import pytest
from command_line import alive, call, refused, write_masks

LEDGER = [
    *("policy", "layers", "kv_heads", "tokens", "block_size", "block_tables", "blocks", "free_blocks"),
    *("logical_saving", "physical_reclaim", "reclaim_efficiency", "fragmentation", "stranded", "live_union"),
]
COMPACTION = [
    *("min_blocks", "freed_blocks", "moved_tokens", "slots_per_move"),
    *("moved_tokens_per_freed_block", "moved_bytes"),
]
PAGES = ("page_bytes", "bytes_returned")
PACKING = ["blocks_needed", "physical_reclaim", "moved_pairs", "moved_bytes"]
ALL_KINDS = ["shared", "per_layer", "per_head"]

# 64 tokens, four blocks of 16: one live, two dead, one half live.
HALF = alive(64, slice(0, 16), slice(56, 64))
# One survivor in each block.
SCATTERED = alive(64, slice(0, 64, 16))


def strict_json(text):
    """Parse JSON that has no NaN in it."""

    def never(constant):
        raise AssertionError(constant)

    return json.loads(text, parse_constant=never)


def ledgers(*arguments):
    answer = call("audit", *arguments, "--json", "-")
    assert answer.status == 0, answer.err
    return strict_json(answer.out)


def layouts(rows):
    return [(row["block_size"], row["block_tables"]) for row in rows]


@pytest.fixture
def masks(tmp_path):
    return write_masks(tmp_path / "masks.npz", half=HALF, scattered=SCATTERED)


def test_defaults_are_blocks_of_16_and_all_three_kinds_of_table(masks):
    rows = ledgers(masks)
    assert [row["policy"] for row in rows] == ["half"] * 3 + ["scattered"] * 3
    assert layouts(rows) == [(16, kind) for kind in ALL_KINDS] * 2
    assert {row["file"] for row in rows} == {str(masks)}


def test_a_ledger_by_hand(masks):
    half = ledgers(masks, "--block-tables", "shared")[0]
    assert list(half) == ["file", *LEDGER, "compaction", "packing", "bytes_freed", *PAGES]
    assert (list(half["compaction"]), list(half["packing"])) == (COMPACTION, PACKING)
    assert {key: half[key] for key in LEDGER} == {
        "policy": "half",
        "layers": 1,
        "kv_heads": 1,
        "tokens": 64,
        "block_size": 16,
        "block_tables": "shared",
        "blocks": 4,
        "free_blocks": 2,
        "logical_saving": 40 / 64,
        "physical_reclaim": 0.5,
        "reclaim_efficiency": 0.8,
        "fragmentation": 0.25,
        "stranded": 0.25,
        "live_union": 24,
    }
    assert list(half["compaction"].values()) == [2, 0, 0, None, None, None]
    assert list(half["packing"].values()) == [2, 0.5, 0, None]
    assert half["bytes_freed"] is None


def test_what_compaction_and_packing_cost_with_a_model(masks):
    # One layer and head stand for all of Llama 3 8B's: 128 KiB a token.
    half, scattered = ledgers(masks, "--block-tables", "shared", "--model", "Llama-3-8B")
    assert half["bytes_freed"] == 32 * 131072
    assert list(scattered["compaction"].values()) == [1, 3, 3, 16.0, 1.0, 3 * 131072]
    assert list(scattered["packing"].values()) == [1, 0.75, 3, 3 * 131072]


def test_undefined_values_are_null(tmp_path):
    none, every = ledgers(
        write_masks(tmp_path / "m.npz", none=alive(32), every=alive(32, slice(32))),
        "--block-tables",
        "shared",
    )
    assert (none["fragmentation"], none["stranded"], none["reclaim_efficiency"]) == (None, None, 1.0)
    assert (every["fragmentation"], every["stranded"], every["reclaim_efficiency"]) == (0.0, 0.0, None)
    table = call("audit", tmp_path / "m.npz").out
    assert re.search(r"none +100\.0% +100\.0% +100\.0% +100\.0% +– +100\.0% +0", table)


def test_block_sizes_and_tables_may_be_repeated(masks):
    sizes = ["--block-size", "8", "--block-size", "32", "--block-size", "8"]
    tables = ["--block-tables", "per_head", "--block-tables", "shared"]
    expected = [(8, "per_head"), (8, "shared"), (32, "per_head"), (32, "shared")]
    assert layouts(ledgers(masks, *sizes, *tables)) == expected * 2
    headings = re.findall(r"^Blocks of \d+ tokens", call("audit", masks, *sizes, *tables).out, re.MULTILINE)
    assert headings == ["Blocks of 8 tokens", "Blocks of 32 tokens"]


def test_every_runtime_sets_block_size_and_tables(masks):
    for runtime in json.loads(call("runtimes", "--json", "-").out):
        rows = ledgers(masks, "--runtime", runtime["name"].upper())
        assert layouts(rows) == [(runtime["block_size"], runtime["block_tables"])] * 2


@pytest.mark.parametrize("option", [("--block-size", "16"), ("--block-tables", "shared")])
def test_a_runtime_and_a_block_size_are_an_error(masks, option):
    refused(call("audit", masks, "--runtime", "vllm", *option), "--runtime", "--block-size")


def test_a_model_from_its_config(tmp_path, masks):
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "torch_dtype": "float32"}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    for model in file, tmp_path:
        half = ledgers(masks, "--model", model, "--block-tables", "shared")[0]
        assert half["bytes_freed"] == 32 * (2 * 2 * 4 * 16 * 4)


def test_a_models_windows_kill_the_tokens_before_them(tmp_path):
    # gpt-oss-20b: 24 layers of 8 heads, every second one sees the last 128 tokens: half of 16 blocks.
    masks = write_masks(tmp_path / "m.npz", all=np.ones((24, 8, 256), bool))
    rows = ledgers(masks, "--model", "gpt-oss-20b")
    assert [row["blocks"] for row in rows] == [2 * 16, 24 * 16, 24 * 8 * 16]  # shared: a table a group
    assert [row["free_blocks"] for row in rows] == [8, 12 * 8, 12 * 8 * 8]
    assert [row["physical_reclaim"] for row in rows] == [0.25] * 3
    assert [row["physical_reclaim"] for row in ledgers(masks)] == [0.0] * 3


def test_sizes_may_differ_in_a_file_and_between_files(tmp_path):
    one = write_masks(tmp_path / "one.npz", a=np.ones((2, 2, 64), bool), b=np.ones((1, 3, 100), bool))
    np.save(tmp_path / "two.npy", alive(7))
    rows = ledgers(one, tmp_path / "two.npy", "--block-tables", "per_head")
    assert [
        (row["policy"], row["layers"], row["kv_heads"], row["tokens"], row["blocks"]) for row in rows
    ] == [
        ("a", 2, 2, 64, 16),
        ("b", 1, 3, 100, 21),
        ("two", 1, 1, 7, 1),
    ]


def test_json_on_stdout_is_pure_and_the_same_in_a_file(masks, tmp_path):
    piped = call("audit", masks, "--json", "-")
    filed = call("audit", masks, "--json", tmp_path / "rows.json")
    assert (tmp_path / "rows.json").read_text() == piped.out
    assert len(strict_json(piped.out)) == 6
    assert piped.err == filed.out != ""
    assert filed.err == ""


def first_cells(table):
    return [line.split()[0] for line in table.rpartition("─")[2].splitlines() if "%" in line]


@pytest.mark.parametrize("order", [ALL_KINDS, ALL_KINDS[::-1]])
def test_the_table_has_the_best_first_by_the_shared_table_then_by_pairs_moved(tmp_path, order):
    masks = {
        "few": alive(64, slice(0, 17), slice(32, 33), slice(48, 49)),  # packing moves 2 of 19 pairs
        "many": SCATTERED,  # moves 3
        "whole": alive(64, slice(0, 48)),
        "most": alive(64, slice(0, 16)),
        # Two heads that keep different blocks: half is free per head, nothing in a shared table; moves 32.
        "heads": np.stack([alive(64, slice(0, 32)), alive(64, slice(32, 64))]),
    }
    kinds = [word for kind in order for word in ("--block-tables", kind)]
    table = call("audit", write_masks(tmp_path / "m.npz", **masks), *kinds).out
    assert first_cells(table) == ["most", "whole", "few", "many", "heads"]
    alone = call("audit", tmp_path / "m.npz", "--block-tables", "per_head").out
    assert first_cells(alone) == ["most", "heads", "whole", "few", "many"]


def test_several_files_are_averaged_in_the_table(tmp_path):
    one = write_masks(tmp_path / "one.npz", a=alive(64, slice(0, 16)), b=SCATTERED)
    two = write_masks(tmp_path / "two.npz", a=SCATTERED)
    table = call("audit", one, two, one).out
    assert re.search(r"a +84\.4% +37\.5%", table)
    assert re.search(r"b +93\.8% +0\.0%", table)
    assert "2 files, measured. Means over 1-2 masks per policy." in " ".join(table.split())
    assert len(ledgers(one, two, one)) == 9


@pytest.mark.parametrize(("least", "status"), [("0", 0), ("0.5", 0), ("0.51", 1), ("1", 1)])
def test_fail_under(tmp_path, least, status):
    masks = write_masks(tmp_path / "m.npz", half=HALF, most=alive(64, slice(0, 16)))
    answer = call(
        "audit", masks, "--fail-under", least, "--json", tmp_path / "m.json", "--out", tmp_path / "out"
    )
    assert answer.status == status
    assert f"of 6 ledgers have a physical reclaim under {least}" in answer.out or status == 0
    assert len(json.loads((tmp_path / "m.json").read_text())) == 6
    assert (tmp_path / "out" / "run.json").exists()
    assert f"wrote {tmp_path / 'out'}" in answer.out.replace("\n", "")


def test_fail_under_names_the_masks(tmp_path):
    masks = write_masks(tmp_path / "m.npz", half=HALF, most=alive(64, slice(0, 16)))
    lines = call("audit", masks, "--fail-under", "0.6", "--block-tables", "shared").out.splitlines()
    assert lines[-2:] == ["1 of 2 ledgers have a physical reclaim under 0.6:", "  half: 50.0% shared"]
    other = write_masks(tmp_path / "n.npz", half=HALF)
    sizes = ["--block-size", "16", "--block-size", "32"]
    out = call("audit", masks, other, "--fail-under", "0.6", "--block-tables", "shared", *sizes).out
    text = "".join(out.split())
    for name in "m.npz", "n.npz":
        of_half = f"half: 50.0% shared in blocks of 16, 0.0% shared in blocks of 32 ({tmp_path / name})"
        assert "".join(of_half.split()) in text


def test_with_a_model_what_is_freed_stands_before_what_moves(masks):
    heading = call("audit", masks, "--model", "llama-3-8b").out.split("─")[0]
    assert heading.splitlines()[-1].split()[-2:] == ["freed", "moved"]


def test_the_results_folder(masks, tmp_path):
    out = tmp_path / "deep" / "out"
    assert call("audit", masks, "--out", out, "--model", "llama-3-8b", "--block-size", "32").status == 0
    assert {file.name for file in out.iterdir()} == {
        "audit.csv",
        "audit.json",
        "interactive_data.json",
        "run.json",
    }
    rows = strict_json((out / "audit.json").read_text())
    assert layouts(rows) == [(32, kind) for kind in ALL_KINDS] * 2
    with (out / "audit.csv").open(newline="") as file:
        flat = list(csv.DictReader(file))
    nested = [f"compaction_{key}" for key in COMPACTION] + [f"packing_{key}" for key in PACKING]
    assert list(flat[0]) == ["file", "model", "ratio", *LEDGER, *nested, "bytes_freed", *PAGES]
    assert [row["packing_moved_bytes"] for row in flat] == [
        str(row["packing"]["moved_bytes"]) for row in rows
    ]
    assert {row["compaction_slots_per_move"] for row in flat} == {"4.0", "16.0"}
    run = strict_json((out / "run.json").read_text())
    assert (run["schema"], run["command"], run["kinds"]) == (1, "audit", ["measured"])
    assert run["parameters"] == {
        "files": [str(masks)],
        "block_sizes": [32],
        "block_tables": ALL_KINDS,
        "runtime": None,
        "model": "llama-3-8b",
        "page_size": None,
    }
    maps = strict_json((out / "interactive_data.json").read_text())["block_maps"]
    assert [(item["id"], item["block_size"], item["tokens"], len(item["frames"])) for item in maps] == [
        ("half", 32, 64, 1),
        ("scattered", 32, 64, 1),
    ]


def test_a_second_run_replaces_its_own_files_and_touches_no_others(masks, tmp_path):
    out = tmp_path / "out"
    call("audit", masks, "--out", out)
    (out / "mine.txt").write_text("mine")
    (out / "figures").mkdir()
    before = (out / "mine.txt").stat()
    call("audit", masks, "--out", out, "--runtime", "sglang")
    assert layouts(json.loads((out / "audit.json").read_text())) == [(1, "shared")] * 2
    assert json.loads((out / "run.json").read_text())["parameters"]["runtime"] == "sglang"
    assert (out / "mine.txt").read_text() == "mine"
    assert (out / "mine.txt").stat().st_mtime_ns == before.st_mtime_ns
    assert {file.name for file in out.iterdir()} == {
        *("audit.csv", "audit.json", "interactive_data.json", "run.json"),
        *("mine.txt", "figures"),
    }


def test_equal_runs_write_equal_tables(masks, tmp_path):
    for name in "ab":
        call("audit", masks, "--out", tmp_path / name)
    for name in "audit.csv", "audit.json", "interactive_data.json":
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
