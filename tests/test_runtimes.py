"""Runtime presets: the values of the issue, a source for each, errors that name the choices."""

import re
from dataclasses import replace

import pytest

from kvreclaim.errors import InputError
from kvreclaim.layout.runtimes import runtime, runtimes
from kvreclaim.layout.tables import BLOCK_TABLES, PER_HEAD, PER_LAYER, SHARED

EXPECTED = {
    "vllm": (16, SHARED, True),
    "vllm-cpu": (32, SHARED, True),
    "tensorrt-llm": (32, SHARED, True),
    "sglang": (1, SHARED, True),
    "lmdeploy": (64, SHARED, True),
    "openvino-cpu": (32, PER_LAYER, False),
    "openvino-gpu": (16, PER_LAYER, False),
    "flashmla": (64, SHARED, False),
    "hf-continuous-batching": (32, SHARED, True),
    "hf-continuous-batching-5.4": (256, SHARED, True),
    "tgi": (16, SHARED, True),
    "tgi-flashinfer": (1, SHARED, True),
    "tgi-flashdecoding": (256, SHARED, True),
    "nano-vllm": (256, SHARED, True),
    "kv-compress": (16, PER_HEAD, True),
}


def test_presets_are_the_expected_ones():
    found = {
        preset.name: (preset.block_size, preset.block_tables, preset.configurable) for preset in runtimes()
    }
    assert found == EXPECTED


@pytest.mark.parametrize("preset", runtimes(), ids=lambda preset: preset.name)
def test_each_preset_says_where_it_was_read(preset):
    assert re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", preset.name)
    assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", preset.date)
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", preset.repository)
    assert preset.url == "https://github.com/" + preset.repository
    assert preset.file.endswith((".py", ".h", ".hpp"))
    assert preset.version and preset.title
    assert preset.block_tables in BLOCK_TABLES


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"block_tables": "per-head"}, "per_head"),
        ({"block_size": 0}, "at least 1"),
        ({"name": "vLLM"}, "case"),
    ],
)
def test_a_preset_that_cannot_be_is_refused(wrong, says):
    with pytest.raises(InputError, match=says):
        replace(runtime("vllm"), **wrong)


def test_preset_gives_its_layout():
    layout = runtime("kv-compress").layout
    assert (layout.block_size, layout.block_tables, layout.groups) == (16, PER_HEAD, ())


def test_any_case_finds_the_preset():
    assert runtime("vLLM") is runtime("vllm")
    assert runtime("SGLang").block_size == 1


@pytest.mark.parametrize("name", ["", "llama.cpp", None])
def test_unknown_runtime_lists_the_known_ones(name):
    with pytest.raises(InputError, match="unknown runtime") as error:
        runtime(name)
    message = str(error.value)
    assert all(preset.name in message for preset in runtimes())
    assert "\n" not in message
