"""Names of presses: all of kvpress, parameters, wrappers, and one clear line for what can't be."""

from pathlib import Path

import pytest
from small_models import kvpress

from kvreclaim import InputError, policies
from kvreclaim.capture.presses import make, names
from kvreclaim.capture.presses.policy_press import PolicyPress, ReceivedAttention, WindowAttention
from kvreclaim.capture.presses.refusals import reason_against
from kvreclaim.capture.presses.tables import POLICIES, REFUSED, SCORERS, WHOLE, WRAPPERS
from kvreclaim.grammar import NamedPress, parse
from kvreclaim.layout import BlockLayout


def test_every_press_of_kvpress_has_a_name_or_a_reason():
    every = {getattr(kvpress, name) for name in kvpress.__all__ if name.endswith("Press")}
    named = {
        *SCORERS.values(),
        *WRAPPERS.values(),
        *WHOLE.values(),
        kvpress.ComposedPress,
        kvpress.SimLayerKVPress,
    }
    assert every - {kvpress.BasePress, kvpress.ScorerPress} <= named | set(REFUSED.values())
    assert all(reason_against(press) for press in REFUSED.values())
    assert not any(reason_against(press) for press in named - {kvpress.ExpectedAttentionStatsPress})


def test_the_projects_policies_have_their_names():
    assert set(POLICIES) <= set(policies.names())
    others = set(policies.names()) - set(POLICIES)
    assert others - {*WRAPPERS, *WHOLE} == {"snapkv"}  # kvpress's: it pools the scores itself
    assert set(POLICIES) < set(names())


@pytest.mark.parametrize(
    "text, parts",
    [
        ("snapkv", [("snapkv", {})]),
        ("snapkv:window_size=32:kernel_size=7", [("snapkv", {"window_size": 32, "kernel_size": 7})]),
        ("adakv:alpha_safeguard=0.1:snapkv", [("adakv", {"alpha_safeguard": 0.1}), ("snapkv", {})]),
        ("a:b=true:c=none:d=x y:e=[1, 2]", [("a", {"b": True, "c": None, "d": "x y", "e": [1, 2]})]),
    ],
)
def test_parse(text, parts):
    assert parse(text) == tuple(NamedPress(name, given) for name, given in parts)


@pytest.mark.parametrize(
    "text", ["", ":", "snapkv:", "=3", "window_size=3", "snapkv:window_size=", "snapkv::knorm"]
)
def test_texts_that_are_no_press(text):
    with pytest.raises(InputError, match="is no press: write name, name:parameter=value or wrapper:name"):
        parse(text)


def test_a_parameter_given_twice():
    with pytest.raises(InputError, match="gives window_size twice"):
        parse("snapkv:window_size=1:window_size=2")


def test_parameters_arrive():
    assert make("snapkv:window_size=32", 0.25, 100) == kvpress.SnapKVPress(0.25, window_size=32)
    press = make("adakv:alpha_safeguard=0.1:criticalkv:snapkv:kernel_size=7", 0.5, 100)
    assert press.alpha_safeguard == 0.1
    assert press.press.press == kvpress.SnapKVPress(0.5, kernel_size=7)
    assert make("dms:threshold=-3:knorm", 0.5, 100).threshold == -3.0
    assert make("expected-attention:epsilon=1", 0.5, 100).epsilon == 1.0


def test_the_projects_policies():
    assert make("h2o:recent_share=0.25", 0.5, 100) == PolicyPress(
        0.5, policies.H2O(0.25), ReceivedAttention()
    )
    press = make("block-wise:block_size=32:block_tables=per_layer:window_size=8", 0.5, 100)
    assert press.layout == BlockLayout(32, "per_layer")
    assert press.scorer == WindowAttention(8)
    assert make("lowest-importance:scores=received", 0.5, 100).scorer == ReceivedAttention()
    assert make("random:seed=7", 0.5, 100).policy == policies.RandomTokens(7)


def test_names_that_both_have():
    assert isinstance(make("streaming-llm", 0.5, 100), PolicyPress)
    assert isinstance(make("kvpress-streaming-llm", 0.5, 100), kvpress.StreamingLLMPress)
    assert isinstance(make("adakv:streaming-llm", 0.5, 100).press, kvpress.StreamingLLMPress)
    assert isinstance(make("chunkkv:random", 0.5, 100).press, kvpress.RandomPress)


def test_presses_set_by_more_than_a_ratio():
    press = make("per-layer:spread=0.2:knorm", 0.5, 100)
    assert press.compression_ratio == 0.5
    composed = make("composed:knorm:keydiff:cur", 0.5, 100)
    assert [part.compression_ratio for part in composed.presses] == pytest.approx([1 - 0.5 ** (1 / 3)] * 3)
    lazy = make("simlayerkv", 0.5, 100)
    assert lazy.n_initial + lazy.n_recent - lazy.n_last == 50


@pytest.mark.parametrize(
    "text, said",
    [
        ("snapcv", "no press 'snapcv': pass one of adakv:PRESS, blend:PRESS, "),
        ("snapkv:window=3", "snapkv has no parameter window: it takes window_size, kernel_size"),
        ("snapkv:window_size=wide", "window_size=wide: pass a value of type int"),
        ("snapkv:window_size=3.5", "pass a value of type int"),
        ("kvzip:layerwise=3", "pass a value of type bool"),
        ("snapkv:compression_ratio=0.5", "snapkv has no parameter compression_ratio"),
        ("compactor:_leverage_press=3", "has no parameter _leverage_press"),
        ("adakv:alpha_safeguard=2:knorm", r"alpha_safeguard should be in \[0, 1\]"),
        ("adakv", "adakv wraps a press: pass adakv:snapkv, or another"),
        ("adakv:h2o", "adakv takes no h2o: pass one of cap, "),
        ("adakv:observed-attention", "needs attention weights, and takes none"),
        ("snapkv:knorm", "knorm follows a press that wraps none"),
        ("composed:knorm", "pass composed:PRESS:PRESS"),
        ("dms:knorm", "pass dms:threshold=NUMBER:PRESS"),
        ("h2o:recent_share=2", "recent_share is 2"),
        ("block-wise:beta=0.5", "block-wise has no parameter beta: it takes scores, window_size"),
        ("block-wise:scores=luck", "scores=luck: pass window or received"),
        ("block-wise:block_tables=none", "block_tables must be one of shared"),
        ("think", "think: it clears channels"),
        ("merging", "merging: it merges the values"),
        ("key-rerotation", "it re-rotates the keys"),
        ("finch", "delimiter token"),
        ("decoding", "see kvreclaim.capture.decoding"),
        ("duo-attention", "wants attention patterns from .*full_attention_heads.tsv"),
        ("qfilter", "nthngdy/<model>_qfilt"),
        ("kvzap", "nvidia/KVzap-mlp-<model>"),
        ("fastkvzip", "Jang-Hyun/Fast-KVzip"),
        ("restorekv", "higokri/RestoreKV-<model>"),
        ("lukv", "baidu-baige/LU-KV"),
        ("adakv:qfilter", "nthngdy"),
        ("expected-attention-stats", "alessiodevoto/exp_att_stats_<model>"),
        (
            "expected-attention-stats:stats_folder=/nope",
            "/nope is no folder; pass that of the query statistics",
        ),
        ("dms:threshold=nan:knorm", "a parameter is nan: pass a finite number"),
    ],
)
def test_bad_names(text, said):
    with pytest.raises(InputError, match=said) as caught:
        make(text, 0.5, 100)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 0.995, float("nan")])
def test_ratios_that_keep_nothing(ratio):
    with pytest.raises(InputError, match=r"ratio .* keeps nothing of 100 tokens; pass one from 0 to 0\.99"):
        make("snapkv", ratio, 100)


def test_the_documentation_names_them_all():
    text = (Path(__file__).parents[2] / "docs" / "capture.md").read_text()
    for name in (*names(), *REFUSED):
        shown = name.replace(":PRESS", ":")
        if name not in ("compression-ratio-decoding", "prefill-decoding"):  # kin of decoding
            assert f"`{shown}`" in text, name
