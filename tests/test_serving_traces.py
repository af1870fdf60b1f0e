"""Traces: each kind by its columns, broken rows by their lines, made-up arrivals by their laws."""

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kvreclaim.errors import InputError
from kvreclaim.serving.arrivals import Lengths, poisson
from kvreclaim.serving.trace import Trace
from kvreclaim.serving.traces import read_trace

SHARED = Path(__file__).parents[2] / "shared/data"
EXAMPLE = Path(__file__).parents[1] / "examples" / "traces" / "azure-conv-1000.csv"


def row(time, prompt, output, hashes):
    values = {"timestamp": time, "input_length": prompt, "output_length": output, "hash_ids": hashes}
    return json.dumps(values)


def request(time, prompt, output):
    return json.dumps({"queued_ts": time, "input_toks": prompt, "output_toks": output, "request_id": "a"})


KINDS = {
    "azure-2023.csv": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n",
        4.314579,
    ),
    "azure-2024.csv": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,374,44\n2024-05-10 00:00:00.017335+00:00,396,109\n",
        0.007405,
    ),
    "burstgpt.csv": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,374,44,418,Conversation log\n45,ChatGPT,396,109,505,Conversation log\n",
        40.0,
    ),
    "mooncake.jsonl": (f"{row(0, 374, 44, [7])}\n{row(2500, 396, 109, [9])}\n", 2.5),
    "vidur.csv": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n",
        4.314579,
    ),
    "vllm.requests.jsonl": (f"{request(9.5, 396, 109)}\n{request(9.25, 374, 44)}\n", 0.25),
    "plain.csv": ("arrival,prompt,output\n1,374,44\n1.5,396,109\n", 0.5),
    "more-columns.csv": ("user,output,prompt,arrival\nx,44,374,0\ny,109,396,3e0\n", 3.0),
    "bench.json": (
        json.dumps({"input_lens": [396, 374, 9], "output_lens": [109, 44, 0], "start_times": [7.5, 7.0, 8]}),
        0.5,
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_known_by_its_columns(tmp_path, name):
    text, second = KINDS[name]
    (tmp_path / name).write_bytes(text.encode())
    trace = read_trace(tmp_path / name)
    np.testing.assert_allclose(trace.arrival, [0, second], atol=1e-9)
    assert trace.prompt.tolist() == [374, 396]
    assert trace.output.tolist() == [44, 109]


def test_parquet_and_gzip(tmp_path):
    table = pl.DataFrame({"arrival": [0.0, 2.0], "prompt": [5, 6], "output": [7, 8]})
    table.write_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(table.write_csv().encode()))
    for name in "a.parquet", "a.csv.gz":
        assert read_trace(tmp_path / name).prompt.tolist() == [5, 6]


def test_hashes_of_prefixes(tmp_path):
    (tmp_path / "m.jsonl").write_text(f"{row(0, 600, 4, [3, 80])}\n{row(9, 512, 4, [3])}\n")
    prefixes = read_trace(tmp_path / "m.jsonl").prefixes
    assert (prefixes.block_tokens, prefixes.distinct) == (512, 2)
    assert prefixes.offsets.tolist() == [0, 2, 3]
    assert prefixes.ids[0] == prefixes.ids[2] != prefixes.ids[1]


def test_the_example_is_the_published_beginning():
    trace = read_trace(EXAMPLE)
    assert trace.requests == 1000
    assert (trace.prompt[0], trace.output[0], trace.prompt[1]) == (374, 44, 396)


@pytest.mark.skipif(not SHARED.exists(), reason="the whole published traces are not on this machine")
def test_whole_published_traces():
    azure = read_trace(SHARED / "azure" / "AzureLLMInferenceTrace_conv.csv")
    vidur = read_trace(SHARED / "vidur" / "splitwise_conv.csv")
    assert azure.requests == vidur.requests == 19_366
    np.testing.assert_array_equal(azure.prompt, vidur.prompt)
    np.testing.assert_allclose(azure.arrival, vidur.arrival, atol=1e-6)
    mooncake = read_trace(SHARED / "mooncake" / "synthetic_trace.head.jsonl")
    assert mooncake.prefixes.offsets[-1] == np.sum(-(-mooncake.prompt.astype(np.int64) // 512))


BROKEN = {
    "word.csv": ("arrival,prompt,output\n0,10,5\n1,x,5\n", "line 3: prompt is 'x'"),
    "missing.csv": ("arrival,prompt,output\n0,10,5\n1,7\n", "line 3: output is missing"),
    "more.csv": ("arrival,prompt,output\n0,10,5\n1,7,3,9\n", "line 3: can't be read"),
    "order.csv": ("arrival,prompt,output\n0,10,5\n2,7,3\n1,1,1\n", "line 4: arrival is '1'"),
    "negative.csv": ("arrival,prompt,output\n-3,10,5\n", "line 2: arrival is '-3'"),
    "infinite.csv": ("arrival,prompt,output\ninf,10,5\n", "line 2: arrival is 'inf'"),
    "nan.csv": ("arrival,prompt,output\n0,10,5\n1,nan,1\n", "line 3: prompt is 'nan'"),
    "half.csv": ("arrival,prompt,output\n0,1.5,5\n", "line 2: prompt is '1.5'"),
    "below.csv": ("arrival,prompt,output\n0,4,-1\n", "line 2: output is '-1'"),
    "huge.csv": ("arrival,prompt,output\n0,4,9999999999\n", "line 2: output is '9999999999'"),
    "empty-line.csv": ("arrival,prompt,output\n0,10,5\n\n1,7,3\n", "line 3: arrival is missing"),
    "no-rows.csv": ("arrival,prompt,output\n", "holds no request"),
    "empty.csv": ("", "can't be read"),
    "columns.csv": ("a,b\n1,2\n", r"columns \(a, b\)"),
    "half.jsonl": (row(0, 6, 5, [0]) + '\n{"timestamp": 0, "input_leng\n', "line 2: can't be read"),
    "text.jsonl": (row(0, 6, 5, [0]) + "\n" + row("a", 6, 5, [0]) + "\n", "line 2: can't be read"),
    "hashes.jsonl": (row(0, 600, 5, [0]) + "\n", "line 1: hash_ids"),
    "lengths.csv": ("num_prefill_tokens,num_decode_tokens,pd_ratio\n3,4,1\n", "pass --rate"),
    "unit.csv": ("arrival,prompt,output\n0,1,1\n9000000,1,1\n", "pass arrivals in seconds"),
    "bench.json": ('{"input_lens": [1, 2], "output_lens": [1]}', "differ in length"),
    "date.csv": ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,3,4\nnow,3,4\n", "line 3"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rows_are_named(tmp_path, name):
    text, words = BROKEN[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        read_trace(tmp_path / name)


def test_files_that_are_none(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(InputError, match="pass a trace"):
            read_trace(path)


def test_requests_without_output_are_left_out_and_named(tmp_path):
    (tmp_path / "a.csv").write_text("arrival,prompt,output\n0,10,5\n1,7,0\n2,7,3\n")
    trace = read_trace(tmp_path / "a.csv")
    assert trace.requests == 2
    assert trace.notes == ("1 requests without prompt or output left out, the first in line 3",)


def test_lengths_alone_get_made_up_arrivals(tmp_path):
    (tmp_path / "a.csv").write_text("num_prefill_tokens,num_decode_tokens,pd_ratio\n3,4,1\n5,6,1\n")
    trace = read_trace(tmp_path / "a.csv", rate=2.0)
    assert trace.prompt.tolist() == [3, 5]
    assert trace.arrival[0] == 0 < trace.arrival[1]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_spread_of_their_law(burstiness):
    trace = poisson(20_000, 5.0, Lengths(100, 400), Lengths(50, 50), burstiness=burstiness, seed=3)
    gaps = np.diff(trace.arrival)
    standard_error = 0.2 * burstiness**-0.5 / np.sqrt(gaps.size)
    assert abs(gaps.mean() - 0.2) < 5 * standard_error
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.1)
    assert (trace.output == 50).all()
    assert np.median(trace.prompt) == pytest.approx(100, rel=0.1)
    assert np.percentile(trace.prompt, 90) == pytest.approx(400, rel=0.1)


@pytest.mark.parametrize("lengths", [(0, 4), (5, 4), (float("nan"), 4)])
def test_lengths_that_cannot_be(lengths):
    with pytest.raises(InputError, match="median"):
        Lengths(*lengths)


@pytest.mark.parametrize(
    "columns", [([1.0, 0.0], [1, 1], [1, 1]), ([0.0], [0], [1]), ([], [], []), ([0.0], [1, 2], [1])]
)
def test_traces_that_cannot_be(columns):
    with pytest.raises(InputError):
        Trace(*(np.array(column) for column in columns))


@pytest.mark.parametrize("name", ["x[1].csv", "x*.csv", "x?.csv", "x[1].jsonl", "x[1].parquet", "x{1}.csv"])
def test_a_name_is_no_pattern(tmp_path, name):
    def write(file, requests):
        table = pl.DataFrame({"arrival": np.arange(requests), "prompt": 9, "output": 1})
        if file.suffix == ".csv":
            file.write_bytes(table.write_csv().encode())
        elif file.suffix == ".parquet":
            with file.open("wb") as stream:
                table.write_parquet(stream)
        else:
            file.write_text("".join(request(time, 9, 1) + "\n" for time in range(requests)))

    write(tmp_path / f"x1{Path(name).suffix}", 1)
    write(tmp_path / name, 3)
    assert read_trace(tmp_path / name).requests == 3


def test_blank_lines_at_the_end_are_no_rows_and_others_are_named(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("arrival,prompt,output\n0,50,5\n1,50,5\n\n\n")
    assert read_trace(file).requests == 2
    file.write_text("arrival,prompt,output\n0,50,5\n\n1,50,5\n")
    with pytest.raises(InputError, match="line 3"):
        read_trace(file)


def test_a_wrong_number_of_hashes_is_counted(tmp_path):
    (tmp_path / "t.jsonl").write_text(row(0, 1024, 5, [1]) + "\n")
    with pytest.raises(InputError, match="hash_ids is a list of 1; pass one hash for every 512 tokens"):
        read_trace(tmp_path / "t.jsonl")


@pytest.mark.parametrize("first", [True, 9])
def test_yes_and_no_are_no_numbers(tmp_path, first):
    file = tmp_path / "t.jsonl"
    file.write_text(
        "".join(json.dumps({"arrival": 0, "prompt": p, "output": 1}) + "\n" for p in (first, True))
    )
    with pytest.raises(InputError, match=f"line {1 if first is True else 2}"):
        read_trace(file)
    pl.DataFrame({"arrival": [0.0, 1.0], "prompt": [True, True], "output": [1, 1]}).write_parquet(
        tmp_path / "t"
    )
    with pytest.raises(InputError, match="row 1: prompt is 'True'"):
        read_trace(tmp_path / "t")
    (tmp_path / "b.json").write_text(json.dumps({"input_lens": [9, first], "output_lens": [True, 1]}))
    with pytest.raises(InputError, match="no lists of numbers"):
        read_trace(tmp_path / "b.json", rate=1.0)
