"""The names of the plugin's policies: what they say of the option, and back."""

import pytest

from kvreclaim import InputError
from kvreclaim.runtimes.vllm.naming import name_of, options_of
from kvreclaim.runtimes.vllm.options import Options


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("snapkv", Options("snapkv", budget=200)),
        ("snapkv:window_size=32:kernel_size=7", Options("snapkv", budget=200, window=32, kernel=7)),
        ("streaming-llm:sinks=8", Options("streaming-llm", budget=200, sinks=8)),
        ("h2o:recent_share=0.25", Options("h2o", budget=200, recent_share=0.25)),
        ("random:seed=3", Options("random", budget=200, seed=3)),
        ("adakv:alpha_safeguard=0.1:snapkv:window_size=32", Options("adakv", 200, alpha=0.1, window=32)),
        ("pyramidkv:beta=10:window_size=32", Options("pyramidkv", budget=200, beta=10, window=32)),
        ("rkv:attention_share=0.5", Options("rkv", budget=200, attention_share=0.5)),
        ("triattention:recent=64", Options("triattention", budget=200, window=64, centres=__file__)),
        ("paged-eviction", Options("paged-eviction", budget=200)),
        ("block-wise:knorm", Options("block-wise", budget=200, scores="knorm")),
        ("block-joint:last-queries", Options("block-joint", budget=200, scores="last-queries")),
        (
            "block-joint:heads=max:sinks=8:recent=32:rkv:window_size=16",
            Options("block-joint", 200, heads="max", sinks=8, recent=32, scores="rkv", window=16),
        ),
        ("block-swap:copies=0.01:tova", Options("block-swap", budget=200, copies=0.01, scores="tova")),
        ("blend:beta=0.5:value-key-ratio", Options("blend", 200, beta=0.5, scores="value-key-ratio")),
    ],
)
def test_a_name_says_the_option_and_the_option_its_name(text, options):
    centres = {} if options.centres is None else {"centres": options.centres}
    assert Options(**options_of(text), **centres, budget=200) == options
    assert name_of(options) == text


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("adakv", "adakv:snapkv"),
        ("block-joint", "block-joint:last-queries"),
        ("block-wise", "block-wise:snapkv"),
        ("block-joint:sinks=4:recent=64:snapkv:window_size=64", "block-joint:snapkv"),
        ("blend:beta=0.25:tova", "blend:tova"),
        ("pyramidkv:beta=20", "pyramidkv"),
    ],
)
def test_what_is_not_said_is_filled_in(given, named):
    assert name_of(Options(**options_of(given), budget=200)) == named


def test_the_full_cache_has_a_name_too():
    assert name_of(Options("none")) == "none"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wish", "policy 'wish' is not the plugin's: pass one of adakv, blend"),
        ("none", "policy 'none' is not the plugin's"),
        ("snapkv:sinks=8", "snapkv has no parameter sinks in the plugin: it takes window_size, kernel_size$"),
        ("tova:window_size=8", "tova has no parameter window_size in the plugin: it takes none$"),
        ("snapkv:tova", "snapkv takes no other's scores: leave out tova$"),
        ("adakv:knorm", "adakv takes one scorer of snapkv: pass one of them"),
        ("block-joint:keydiff", "block-joint takes one scorer of snapkv, tova, h2o"),
        ("block-joint:snapkv:tova", "block-joint takes one scorer of "),
        ("block-joint:block_size=32:tova", "block-joint has no parameter block_size"),
        ("block-joint:tova:", "is no press"),
        (
            "token-joint:tokens=max",
            "token-joint has no parameter tokens in the plugin: it takes heads, sinks",
        ),
        ("wi\nsh", r"policy 'wi\\nsh' is not the plugin's"),
        ("snapkv:a\nb=1", r"snapkv has no parameter a\\nb in the plugin"),
        ("snapkv:a\nb=1:a\nb=2", r"gives a\\nb twice"),
        ("snapkv:to\nva", r"^snapkv:to\\nva: snapkv takes no other's scores: leave out to\\nva$"),
        ("block-joint:to\u2028va", r"^block-joint:to\\u2028va: block-joint takes one scorer"),
    ],
)
def test_what_the_plugin_does_not_have(text, said):
    with pytest.raises(InputError, match=said) as refusal:
        options_of(text)
    assert len(str(refusal.value).splitlines()) == 1
