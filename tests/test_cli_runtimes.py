"""``kvreclaim runtimes``: every preset, with what the issue says of it, in the table and in JSON."""

import json

from command_line import call

from kvreclaim.layout import runtimes

KEYS = {
    *(
        "name",
        "title",
        "block_size",
        "block_tables",
        "repository",
        "file",
        "version",
        "date",
        "setting",
        "note",
    ),
    "configurable",
}


def test_json():
    answer = call("runtimes", "--json", "-")
    assert answer.status == 0
    rows = json.loads(answer.out)
    assert all(set(row) == KEYS for row in rows)
    assert [row["name"] for row in rows] == [preset.name for preset in runtimes()]
    sizes = {row["name"]: row["block_size"] for row in rows}
    expected = {"vllm": 16, "vllm-cpu": 32, "tensorrt-llm": 32, "sglang": 1, "lmdeploy": 64, "nano-vllm": 256}
    assert sizes == sizes | expected
    assert all(row["configurable"] is (row["setting"] is not None) for row in rows)
    assert answer.err == call("runtimes").out


def test_the_table():
    table = call("runtimes").out
    assert max(map(len, table.splitlines())) <= 80
    lines = [line.strip() for line in table.splitlines()]
    for preset in runtimes():
        row = next(line.split() for line in lines if line.split()[:1] == [preset.name])
        assert row[1:3] == [str(preset.block_size), preset.block_tables]
        assert " ".join(row[3:]) == (preset.setting or "fixed")
        assert preset.file in lines  # whole, on a line of its own
        assert f"{preset.repository} {preset.version}, {preset.date}" in " ".join(lines)


def test_json_to_a_file(tmp_path):
    answer = call("runtimes", "--json", tmp_path / "runtimes.json")
    assert (answer.status, answer.err, answer.out) == (0, "", call("runtimes").out)
    assert (tmp_path / "runtimes.json").read_text() == call("runtimes", "--json", "-").out
