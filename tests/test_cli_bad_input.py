"""Bad input to any command: one line on stderr that says what is wrong, status 2, nothing written."""

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from command_line import alive, call, names, refused, write_masks

GOOD = alive(64, slice(0, 16))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with one good file; only a test's own bad file is added to it."""
    write_masks(tmp_path / "good.npz", good=GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def zipped(name, content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def npy_header(text):
    header = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def safetensors(dtype, size):
    header = json.dumps({"a": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4 * size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4 * size)


def encrypted(archive):
    """Set the flag of an encrypted member in both places that have it."""
    return archive.replace(b"PK\x03\x04\x14\0\0", b"PK\x03\x04\x14\0\1").replace(
        b"PK\x01\x02\x14\x03\x14\0\0", b"PK\x01\x02\x14\x03\x14\0\1"
    )


def damaged_lzma(content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", content)
    whole = bytearray(buffer.getvalue())
    whole[60:80] = bytes(20)
    return bytes(whole)


SHAPED = "{'descr': '|b1', 'fortran_order': False, 'shape': "
OBJECTS = npy(np.array([{"a": 1}], dtype=object))
SCATTER = np.random.default_rng(0).random(5000) < 0.5

BAD_FILES = {
    "rank-0.npz": (npz(a=np.array(True)), "rank 0"),
    "rank-4.npz": (npz(a=np.ones((1, 2, 3, 4), bool)), "rank 4"),
    "numbers.npz": (npz(a=np.array([0.0, 1.0])), "must be bool"),
    "nan.npy": (npy(np.array([np.nan])), "must be bool"),
    "twos.npz": (npz(a=np.array([0, 1, 2], np.uint8)), "0 and 1"),
    "text.npz": (npz(a=np.array(["yes"])), "must be bool"),
    "empty-mask.npz": (npz(a=np.ones((2, 0), bool)), "empty"),
    "no-mask.npz": (npz(), "no keep mask"),
    "no-bytes.npz": (b"", "not a whole"),
    "no-bytes.npy": (b"", "not a whole"),
    "no-bytes.safetensors": (b"", "not a whole"),
    "truncated.npz": (npz(a=SCATTER)[:-300], "not a whole"),
    "truncated.npy": (npy(SCATTER)[:-300], "not a whole"),
    "truncated.safetensors": (b"\x40\0\0\0\0\0\0\0{", "not a whole"),
    "pickled.npy": (OBJECTS, "never loaded"),
    "pickled.npz": (zipped("a.npy", OBJECTS), "never loaded"),
    "pickle.npy": (pickle.dumps([True]), "never loaded"),
    "readme.npz": (zipped("readme.txt", "hello"), "not a whole"),
    "huge.npy": (
        npy_header(f"{SHAPED}({2**50},)}}"),
        "not a whole",
    ),
    "huge.npz": (
        zipped("a.npy", npy_header(f"{SHAPED}({10**30},)}}")),
        "not a whole",
    ),
    "half-header.npy": (npy_header("{'descr': '|b1'"), "not a whole"),
    "encrypted.npz": (encrypted(zipped("a.npy", npy(SCATTER))), "encrypted"),
    "lzma.npz": (damaged_lzma(npy(SCATTER)), "not a whole"),
    "bf16.safetensors": (safetensors("BF16", 2), "bfloat16"),
    "fp8.safetensors": (safetensors("F8_E4M3", 1), "not a whole"),
    "nested.npz": (
        npz(a=GOOD, __kvreclaim__=np.frombuffer(b"[" * 100_000, np.uint8)),
        "header is damaged",
    ),
    "masks.pt": (b"", "unknown kind of file"),
    "one\nname, \x1b[31mtwo lines.npz": (b"", "not a whole"),
    "header.npz": (npz(a=GOOD, __kvreclaim__=np.frombuffer(b"[1", np.uint8)), "header is damaged"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_files_that_are_no_keep_masks(folder, name):
    content, reason = BAD_FILES[name]
    (folder / name).write_bytes(content)
    # A good file before the bad one must not lead to output either.
    refused(call("audit", "good.npz", name, "--json", "m.json", "--out", "out"), reason)
    assert names() == sorted(["good.npz", name])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["FILE"]),
        (["none.npz"], ["none.npz", "no such file"]),
        (["."], ["is a directory"]),
        ([""], ["'' names no file"]),
        ([f"{'a' * 300}.npz"], ["File name too long"]),
        (["good.npz", "--block-size", "0"], ["0", "at least 1"]),
        (["good.npz", "--block-size", "-16"], ["-16", "at least 1"]),
        (["good.npz", "--block-size", "many"], ["--block-size is 'many': pass a whole number"]),
        (["good.npz", "--block-size", "1.5"], ["--block-size is '1.5': pass a whole number"]),
        (["good.npz", "--block-size", "9" * 30], ["block_size", "at most 2147483647"]),
        (["good.npz", "--block-tables", "per-head"], ["per-head", "per_head"]),
        (["good.npz", "--runtime", "llama.cpp"], ["llama.cpp", "vllm"]),
        (["good.npz", "--runtime", ""], ["unknown runtime"]),
        (["good.npz", "--model", "gpt-5"], ["gpt-5", "llama-3-8b"]),
        (["good.npz", "--model", "."], ["config.json"]),
        (["good.npz", "--model", "good.npz"], ["not JSON"]),
        (["good.npz", "--fail-under", "1.5"], ["--fail-under", "1.5"]),
        (["good.npz", "--fail-under", "nan"], ["--fail-under", "nan"]),
        (["good.npz", "--frob"], ["--frob"]),
        (["good.npz", "--runtime"], ["--runtime"]),
    ],
)
def test_options_of_audit(folder, arguments, words):
    refused(call("audit", "--json", "m.json", "--out", "out", *arguments), *words)
    assert names() == ["good.npz"]


def test_a_directory_that_is_called_like_a_file(folder):
    (folder / "masks.npz").mkdir()
    refused(call("audit", "masks.npz"), "is a directory")


def test_a_model_of_another_shape(folder):
    write_masks(folder / "good.npz", good=np.ones((2, 2, 16), bool))
    refused(call("audit", "good.npz", "--model", "llama-3-8b", "--out", "out"), "32 layers of 8", "2 of 2")
    assert names() == ["good.npz"]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", pytest.param("[" * 100_000, id="nested"), '{"num_hidden_layers": "two"}', "\x00"],
)
def test_a_config_that_describes_no_model(folder, content):
    (folder / "config.json").write_text(content)
    refused(call("audit", "good.npz", "--model", "config.json"))


UNWRITABLE = ["", ".", "/", "none/m.json", "good.npz/m.json", "a" * 300]


@pytest.mark.parametrize("json_file", UNWRITABLE)
@pytest.mark.parametrize("command", [["audit", "good.npz", "--out", "out"], ["bound"], ["runtimes"]])
def test_json_that_cannot_be_written_stops_before_anything_is(folder, command, json_file):
    refused(call(*command, "--json", json_file), "can't be written")
    assert names() == ["good.npz"]


@pytest.mark.parametrize("out", ["", "good.npz", "good.npz/out"])
def test_a_results_folder_that_cannot_be_made(folder, out):
    before = (folder / "good.npz").read_bytes()
    refused(call("audit", "good.npz", "--out", out, "--json", "m.json"), "--out")
    assert names() == ["good.npz"]
    assert (folder / "good.npz").read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_of_others(folder):
    folder.chmod(0o500)
    refused(call("audit", "good.npz", "--out", "out"), "Permission denied")
    refused(call("audit", "good.npz", "--json", "m.json"), "Permission denied")
    folder.chmod(0o700)
    assert names() == ["good.npz"]


def test_a_directory_in_the_way_of_a_results_file(folder):
    (folder / "out" / "audit.csv").mkdir(parents=True)
    refused(call("audit", "good.npz", "--out", "out"), "audit.csv", "can't be written")
    assert names("out") == ["audit.csv"]


def test_a_refused_second_run_leaves_the_first_ones_files(folder):
    call("audit", "good.npz", "--out", "out", "--json", "m.json")
    (folder / "bad.npz").write_bytes(b"")
    files = [folder / "m.json", *(folder / "out").iterdir()]
    before = [file.read_bytes() for file in files]
    refused(call("audit", "good.npz", "bad.npz", "--out", "out", "--json", "m.json"))
    assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ratio", "1.5"], ["ratio", "1.5"]),
        (["--ratio", "-0.1"], ["ratio", "-0.1"]),
        (["--ratio", "nan"], ["ratio", "nan"]),
        (["--ratio", "inf"], ["ratio", "inf"]),
        (["--ratio", "half"], ["--ratio is 'half': pass a number"]),
        (["--block-size", "0"], ["block_size", "0"]),
        (["--block-size", "9" * 30], ["--block-size is ", "pass at most 4096"]),
        (["--tokens", "0"], ["tokens", "0"]),
        (["--heads", "0"], ["heads", "0"]),
        (["--layers", "-1"], ["layers", "-1"]),
        (["16"], ["16"]),
        (["--frob"], ["--frob"]),
    ],
)
def test_options_of_bound(folder, arguments, words):
    refused(call("bound", "--json", "m.json", *arguments), *words)
    assert names() == ["good.npz"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "--out", "out", "--seeds", "0"], ["seeds", "0"]),
        (["reproduce", "--out", "out", "--seeds", "many"], ["--seeds"]),
        (["reproduce", "--out", "out", "--seeds", "9" * 18], ["seeds", "10000"]),
        (["reproduce", "--out", "out", "--seed-base", "-1"], ["seed_base", "-1"]),
        (["reproduce", "--out", "out", "--jobs", "0"], ["jobs", "0"]),
        (["reproduce", "--out", "good.npz"], ["--out"]),
        (["reproduce", "--out", ""], ["--out"]),
        (["reproduce", "--out", "out", "--json", "none/m.json"], ["can't be written"]),
        (["page"], ["DIR"]),
        (["page", "none"], ["none"]),
        (["page", "good.npz"], ["good.npz"]),
        (["page", "."], ["run.json"]),
        (["page", "none", "--out", "."], ["can't be written"]),
        (["page", "none", "--out", "none/x.html"], ["can't be written"]),
    ],
)
def test_options_of_the_study_and_the_page(folder, arguments, words):
    refused(call(*arguments), *words)
    assert names() == ["good.npz"]


@pytest.mark.parametrize("arguments", [["frob"], ["--frob"], ["runtimes", "vllm"], ["au\x1b[31mdit"]])
def test_unknown_commands_and_options(arguments):
    refused(call(*arguments))


def test_no_command_prints_the_help():
    answer = call()
    assert (answer.status, answer.err) == (2, "")
    assert all(command in answer.out for command in ("audit", "bound", "page", "reproduce", "runtimes"))


def test_bad_metadata_in_a_file(folder):
    header = {"format": "kvreclaim-keep-masks", "version": 1, "masks": {"a": {"ratio": 1.5}}}
    write_masks(
        folder / "bad.npz", a=GOOD, __kvreclaim__=np.frombuffer(json.dumps(header).encode(), np.uint8)
    )
    refused(call("audit", "bad.npz"), "ratio", "1.5")


def test_no_output_replaces_an_input(folder):
    before = (folder / "good.npz").read_bytes()
    (folder / "link.npz").symlink_to("good.npz")
    for json_file in ("good.npz", "./good.npz", folder / "good.npz", "link.npz"):
        refused(call("audit", "good.npz", "--json", json_file, "--out", "out"), "is what this command reads")
    assert names() == ["good.npz", "link.npz"]
    assert (folder / "good.npz").read_bytes() == before


@pytest.mark.parametrize("name", ["audit.csv", "run.json", "audit.json", "../out/interactive_data.json", "."])
def test_json_replaces_no_result_of_its_own_command(folder, name):
    (folder / "out").mkdir()
    refused(call("audit", "good.npz", "--out", "out", "--json", f"out/{name}"))
    refused(call("reproduce", "--out", "out", "--json", f"out/{name}"))
    assert names("out") == []
    assert call("audit", "good.npz", "--out", "out", "--json", "out/mine.json").status == 0
    assert call("audit", "good.npz", "--out", "out", "--json", "out/mine.json").status == 0


@pytest.mark.parametrize(
    "name", ["run.json", "audit.csv", "interactive_data.json", "notes.txt", "figures/a.svg"]
)
def test_a_page_replaces_nothing_of_a_results_folder_but_a_page(folder, name):
    call("audit", "good.npz", "--out", "out")
    (folder / "out" / "notes.txt").write_text("mine")
    (folder / "out" / "figures").mkdir()
    before = {path: path.read_bytes() for path in (folder / "out").iterdir() if path.is_file()}
    refused(call("page", "out", "--out", f"out/{name}"), "is what this command reads")
    assert {path: path.read_bytes() for path in (folder / "out").iterdir() if path.is_file()} == before
    assert call("page", "out", "--out", "out/index.html").status == 0
    assert call("page", "out", "--out", "out/index.html").status == 0


def test_results_replace_no_text_that_is_measured(folder):
    (folder / "out").mkdir()
    (folder / "out" / "measured.csv").write_text("a text")
    refused(
        call("measure", "--model", "none", "--text", "out/measured.csv", "--out", "out"),
        "would replace out/measured.csv",
    )
    assert (folder / "out" / "measured.csv").read_text() == "a text"
