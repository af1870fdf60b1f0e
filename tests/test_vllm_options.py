"""The plugin's option: what it takes and what it refuses, in one line."""

import json
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest

from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm.options import POLICIES, Options, from_environment, parse, prompt_name


def test_an_option_goes_through_json_and_back():
    options = Options("h2o", 128, "mask", buffer=32, recent_share=0.25, records="somewhere")
    assert parse(options.as_json()) == options


def test_numbers_of_numpy_are_written_as_pythons():
    options = Options("h2o", np.int64(128), recent_share=np.float32(0.25))
    assert parse(options.as_json()) == Options("h2o", 128, recent_share=0.25)


def test_the_environment_may_be_silent(monkeypatch):
    monkeypatch.delenv("KVRECLAIM_VLLM", raising=False)
    assert from_environment() is None
    monkeypatch.setenv("KVRECLAIM_VLLM", "  ")
    assert from_environment() is None
    monkeypatch.setenv("KVRECLAIM_VLLM", '{"policy": "knorm", "budget": 7}')
    assert from_environment() == Options("knorm", 7)


PRICED = {"policy": "knorm", "budget": 9, "mode": "compact", "latency_budget": 1, "copy_cost": __file__}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "pass a JSON object"),
        ({}, "names no policy"),
        ({"policy": "snapkv", "budget": 128, "speed": 1}, "has no 'speed'"),
        ({"policy": "lru", "budget": 128}, "policy is 'lru'"),
        ({"policy": "snapkv"}, "needs a budget"),
        ({"policy": "knorm", "budget": 0}, "at least 1"),
        ({"policy": "knorm", "budget": "128"}, "budget is '128'"),
        ({"policy": "none", "budget": 128}, "has no budget"),
        ({"policy": "snapkv", "budget": 64}, "a window of 64"),
        ({"policy": "block-wise", "budget": 64}, "a window of 64"),
        ({"policy": "streaming-llm", "budget": 4}, "4 sinks"),
        ({"policy": "knorm", "budget": 9, "mode": "shrink"}, "mode is 'shrink'"),
        ({"policy": "none", "mode": "compact"}, "nothing to compact"),
        ({"policy": "knorm", "budget": 9, "mode": "compact", "latency_budget": 1}, "go together"),
        ({"policy": "knorm", "budget": 9, "mode": "compact", "copy_cost": "c.json"}, "go together"),
        ({**PRICED, "copy_cost": "nowhere.json"}, "nowhere.json: no such file"),
        ({**PRICED, "copy_cost": 3}, "copy_cost is 3: pass a text"),
        ({**PRICED, "latency_budget": 0}, "latency_budget is 0: pass seconds"),
        ({**PRICED, "latency_budget": "1"}, "latency_budget is '1': pass a number"),
        ({**PRICED, "mode": "pack"}, "mode pack has no latency_budget"),
        ({**PRICED, "policy": "paged-eviction", "budget": 128}, "paged-eviction copies nothing"),
        ({"policy": "knorm", "budget": 9, "mode": "free", "copy_budget": 1}, "copies nothing"),
        ({"policy": "adakv", "budget": 99, "copy_budget": 1}, "heads differ"),
        ({"policy": "knorm", "budget": 9, "buffer": 0}, "at least 1"),
        ({"policy": "none", "buffer": 8}, "evicts once"),
        ({"policy": "block-wise", "budget": 99, "mode": "free", "buffer": 8}, "pass mode pack, and no copy"),
        ({"policy": "block-joint", "budget": 99, "mode": "mask", "buffer": 8}, "pass mode free or pack"),
        ({"policy": "blend", "budget": 99, "mode": "free", "buffer": 8}, "pass mode pack, and no copy"),
        (
            {"policy": "block-swap", "budget": 99, "copy_budget": 9, "buffer": 8},
            "blend|block-swap with buffer",
        ),
        ({"policy": "block-joint", "budget": 128, "copy_budget": 9}, "block-joint copies nothing"),
        ({"policy": "block-joint", "budget": 128, "recent": 0}, "at least 1"),
        ({"policy": "block-joint", "budget": 128, "heads": "all"}, "heads='all'"),
        ({"policy": "block-joint", "budget": 128, "scores": "keydiff"}, "scores is 'keydiff'"),
        ({"policy": "block-joint", "budget": 60, "scores": "snapkv"}, "a window of 64"),
        ({"policy": "block-swap", "budget": 128, "copies": 2}, "from 0 to 1"),
        ({"policy": "blend", "budget": 128, "beta": 20}, "from 0 to 1"),
        ({"policy": "pyramidkv", "budget": 128, "beta": 0}, "at least 1"),
        ({"policy": "snapkv", "budget": 128, "scores": "h2o"}, "leave out scores"),
        ({"policy": "rkv", "budget": 8}, "a window of 8"),
        ({"policy": "triattention", "budget": 256}, "centres go together"),
        ({"policy": "knorm", "budget": 9, "centres": "centres.npz"}, "centres go together"),
        ({"policy": "triattention", "budget": 256, "centres": "nowhere.npz"}, "nowhere.npz: no such file"),
        ({"policy": "snapkv", "budget": 128, "kernel": 4}, "odd"),
        ({"policy": "h2o", "budget": 128, "recent_share": 2}, "from 0 to 1"),
        ({"policy": "keep-mask"}, "go together"),
        ({"policy": "knorm", "budget": 9, "masks": "masks.npz"}, "go together"),
        ({"policy": "keep-mask", "masks": "nowhere.npz"}, "no such file"),
        ({"policy": "knorm", "budget": 9, "record_masks": 1}, "true or false"),
    ],
)
def test_what_is_refused(given, says):
    with pytest.raises(InputError, match=says) as refusal:
        parse(given if isinstance(given, str) else json.dumps(given))
    assert "\n" not in str(refusal.value)


OWN = {
    "sinks": (4, 3),
    "recent": (64, 9),
    "window": (64, 16),
    "kernel": (5, 3),
    "recent_share": (0.5, 0.25),
    "attention_share": (0.1, 0.5),
    "alpha": (0.2, 0.5),
    "beta": (0.25, 1),
    "copies": (0.025, 0.5),
    "heads": ("mean", "max"),
    "tokens": ("mean", "max"),
    "top": (2, 3),
    "seed": (0, 1),
    "scores": ("snapkv", "knorm"),
}
"""What belongs to some policies alone: a value that says nothing new, and one that does."""
LOOKING = {"window", "kernel"}
JOINT = {"heads", "tokens", "top", "sinks", "recent", "scores", *LOOKING}
TAKES = {
    "none": set(),
    "streaming-llm": {"sinks"},
    "snapkv": LOOKING,
    "tova": set(),
    "h2o": {"recent_share"},
    "knorm": set(),
    "rkv": {"attention_share", *LOOKING},
    "triattention": {"window"},
    "adakv": {"alpha", *LOOKING},
    "pyramidkv": {"beta", *LOOKING},
    "random": {"seed"},
    "keep-mask": set(),
    "block-wise": {"scores", *LOOKING},
    "block-joint": JOINT,
    "block-swap": {"copies", *JOINT},
    "blend": {"beta", *JOINT},
    "token-joint": JOINT - {"tokens", "top"},
    "paged-eviction": set(),
}
"""As docs/vllm.md and the policies' papers have it, with the scores that each takes by default."""
NEEDED = {
    "none": {},
    "keep-mask": {"masks": __file__},
    "triattention": {"budget": 300, "centres": __file__},
}


def test_every_policy_s_options_are_known():
    assert set(TAKES) == set(POLICIES)
    whole = {"budget", "mode", "buffer", "centres", "masks", "records", "record_masks", "policy"}
    whole |= {"copy_budget", "latency_budget", "copy_cost"}
    assert {field.name for field in fields(Options)} == whole | set(OWN)


@pytest.mark.parametrize("policy", TAKES)
def test_an_option_that_a_policy_does_not_use_is_refused_by_name_even_at_its_default(policy):
    given = {"policy": policy, **NEEDED.get(policy, {"budget": 300})}
    assert parse(json.dumps(given)).policy == policy
    for name, values in OWN.items():
        for value in values:
            if name in TAKES[policy] and name != "scores":
                taken = {**given, name: 2 if (policy, name) == ("pyramidkv", "beta") else value}
                assert getattr(parse(json.dumps(taken)), name) == taken[name]
            elif name not in TAKES[policy]:
                says = f"does not take {name}: leave it out, it takes policy, |^policy {policy} has scores"
                with pytest.raises(InputError, match=says) as refusal:
                    parse(json.dumps({**given, name: value}))
                assert "\n" not in str(refusal.value)
                listed = str(refusal.value).partition("it takes ")[2].split(", ")
                assert name == "scores" or TAKES[policy] <= set(listed)
        if name not in TAKES[policy]:
            with pytest.raises(InputError, match=name):
                Options(**given, **{name: OWN[name][1]})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"scores": "tova", "window": 8}, "with the scores of tova does not take window: leave it out"),
        ({"scores": "knorm", "kernel": 5, "window": 8}, "does not take window, kernel: leave them out"),
        ({"scores": "snapkv", "attention_share": 0.5}, "does not take attention_share"),
        ({"scores": "triattention", "centres": __file__, "kernel": 5}, "does not take kernel: .*centres"),
    ],
)
def test_scores_that_a_policy_borrows_bring_their_options(given, says):
    with pytest.raises(InputError, match=says):
        parse(json.dumps({"policy": "block-joint", "budget": 300, **given}))
    assert parse('{"policy": "block-joint", "budget": 300, "scores": "rkv", "attention_share": 1}')


@pytest.mark.parametrize("given", [{"mode": "pack"}, {"mode": "mask"}, {"record_masks": True}])
def test_what_keeps_everything_has_no_mode(given):
    with pytest.raises(InputError, match=r"policy none does not take .*it takes policy, records$"):
        parse(json.dumps({"policy": "none", **given}))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"policy": "knorm", "budget": 9, "budget": 9}', "'budget'"),
        ('{"policy": "none", "policy": "knorm", "budget": 9}', "'policy'"),
        ('{"policy": "knorm", "budget": 9, "a\\nb": 1, "a\\nb": 1}', r"'a\\nb'"),
    ],
)
def test_a_name_given_twice_is_refused(text, name):
    with pytest.raises(InputError, match=f"gives {name} twice: give it once$"):
        parse(text)


def test_scores_bring_their_own_windows():
    joint = Options("block-joint", 128)
    assert (joint.scored_by, joint.looking, joint.smoothing) == ("last-queries", 256, 5)
    assert (Options("rkv", 128).looking, Options("rkv", 128).smoothing) == (8, 7)
    assert (Options("snapkv", 128, window=32).looking, Options("tova", 128).looking) == (32, 1)
    assert Options("random", 128).scored_by is None


def test_prompts_have_names_of_their_own():
    assert prompt_name([1, 2]) == prompt_name((1, 2))
    assert len({prompt_name([1, 2]), prompt_name([12]), prompt_name([1, 2, 3])}) == 3


def test_without_the_option_the_plugin_imports_nothing():
    code = (
        "import sys; from kvreclaim.runtimes.vllm.plugin import register; old = set(sys.modules); "
        "register(); "
        "print(*set(sys.modules) - old, *(name for name in sys.modules if name.split('.')[0] == 'vllm'))"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        *((name, "x", "a whole number") for name in ("budget", "copy_budget", "buffer", "sinks", "recent")),
        *((name, 1.5, "a whole number") for name in ("window", "kernel", "top", "seed")),
        *(
            (name, True, "a number")
            for name in ("recent_share", "attention_share", "alpha", "beta", "copies")
        ),
        *(
            (name, 1, "a text")
            for name in ("mode", "heads", "tokens", "scores", "centres", "masks", "records")
        ),
        *((name, None, "a whole number") for name in ("sinks", "top", "seed")),
        *((name, [], "a number") for name in ("alpha", "copies")),
        ("record_masks", 1, "true or false"),
        ("policy", 1, "a text"),
    ],
)
def test_a_value_of_another_type_is_refused_whatever_the_policy_uses(name, value, wanted):
    for option in (
        {"policy": "none"},
        {"policy": "knorm", "budget": 9},
        {"policy": "block-joint", "budget": 128},
    ):
        with pytest.raises(InputError, match=f"^{name} is .*: pass {wanted}$"):
            parse(json.dumps({**option, name: value}))


@pytest.mark.parametrize("name", ["alpha", "beta", "copies"])
def test_numbers_are_finite(name):
    with pytest.raises(InputError, match=f"^{name} is nan: pass a number$"):
        Options("knorm", 9, **{name: float("nan")})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "is not JSON"),
        (json.dumps({"policy": "knorm", "budget": 9, "a\nb": 1}), r"has no 'a\\nb'"),
        (json.dumps({"policy": "pyramidkv", "budget": 128, "beta": "x"}), "beta is 'x'"),
        (json.dumps({"policy": "pyramidkv", "budget": 128, "beta": [1]}), "beta is"),
        (json.dumps({"policy": "knorm", "budget": 9, "records": "a\0b"}), "records is"),
        (json.dumps({"policy": "knorm", "budget": 9, "records": ""}), "records is ''"),
        (json.dumps({"policy": "keep-mask", "masks": "m" * 5000}), "no such file"),
        (json.dumps({"policy": "snapkv", "budget": 65, "kernel": 1_000_000_001}), "at most 1001"),
    ],
    ids=["nested", "two lines", "text", "list", "nul", "empty", "long name", "kernel"],
)
def test_odd_values_are_refused_in_one_line(text, says):
    with pytest.raises(InputError, match=says) as refusal:
        parse(text)
    assert "\n" not in str(refusal.value)
