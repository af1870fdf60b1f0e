"""What vLLM says after an eviction is what Hugging Face says with the same pairs dropped."""

from dataclasses import replace

import pytest
from observed import FULL, assert_same

from kvreclaim.runtimes.vllm.options import Options

COUNT = 48
BUDGET = 96
# Every policy and every mode, a copy budget, and evictions while decoding.
SMOKE = [
    Options("streaming-llm", BUDGET, "pack"),
    Options("snapkv", BUDGET, "pack", window=32),
    Options("tova", BUDGET, "pack", buffer=16),
    Options("h2o", BUDGET, "pack", buffer=16),
    Options("knorm", BUDGET, "free"),
    Options("random", BUDGET, "mask"),
    Options("block-wise", BUDGET, "pack", window=32),
    Options("snapkv", BUDGET, "pack", window=32, copy_budget=400_000),
    Options("adakv", BUDGET, "pack", window=32, buffer=24),
    Options("pyramidkv", BUDGET, "pack", window=32),
    Options("h2o", BUDGET, "mask", buffer=16),
    Options("tova", BUDGET, "free", buffer=16),
    Options("block-joint", BUDGET, "free", recent=32, buffer=16),
    Options("block-swap", BUDGET, "pack", recent=32, buffer=24),
    Options("rkv", BUDGET, "pack", buffer=16),
]
TRIATTENTION = [
    ("triattention", {"buffer": 16}),
    ("block-joint", {"mode": "free", "scores": "triattention", "recent": 32}),
    ("block-swap", {"scores": "triattention", "recent": 32}),
]
"""Policies and options; the query centres are a file."""

if FULL:
    TRIATTENTION += [
        *(("triattention", {"mode": mode}) for mode in ("free", "mask")),
        *((policy, {"scores": "triattention", "recent": 32}) for policy in ("blend", "token-joint")),
        ("block-joint", {"mode": "free", "scores": "triattention", "recent": 32, "buffer": 32}),
    ]


JOINT = ("block-joint", "block-swap", "blend", "token-joint")
EQUAL = ("streaming-llm", "snapkv", "tova", "h2o", "knorm", "random", "block-wise")
LOOKING = {policy: {"window": 32} for policy in ("snapkv", "block-wise", "adakv", "pyramidkv")}
"""What is set of the policies that have a window."""

WHOLE = [
    Options(policy, BUDGET, mode, buffer=buffer, **LOOKING.get(policy, {}))
    for policy in (*EQUAL, "adakv", "pyramidkv")
    for mode in ("free", "pack", "mask")
    for buffer in (None, 16)
    if policy != "block-wise" or mode == "pack" or buffer is None
]
WHOLE += [Options(policy, BUDGET, "pack", copy_budget=400_000, **LOOKING.get(policy, {})) for policy in EQUAL]
WHOLE += [
    Options(policy, BUDGET, mode, recent=32, scores=scores)
    for policy in JOINT
    for mode in ("free", "pack", "mask")
    for scores in ("last-queries", "rkv", "knorm")
]
WHOLE += [
    Options(policy, BUDGET, mode) for policy in ("paged-eviction", "rkv") for mode in ("free", "pack", "mask")
]
WHOLE += [
    *(Options(policy, BUDGET, "compact", **LOOKING.get(policy, {})) for policy in EQUAL[:2]),
    Options("adakv", BUDGET, "compact", **LOOKING["adakv"]),
    *(Options(policy, BUDGET, "compact", window=32, recent=32) for policy in ("token-joint", "blend")),
]
WHOLE += [
    *SMOKE[-3:],
    Options("blend", BUDGET, "pack", recent=32, scores="tova", buffer=16),
    Options("token-joint", BUDGET, "pack", recent=32, scores="h2o", buffer=16),
    Options("paged-eviction", BUDGET, "free", buffer=32),
]


def named(options):
    more = [
        f"{name}={getattr(options, name)}"
        for name in ("copy_budget", "buffer", "scores")
        if getattr(options, name)
    ]
    return "-".join([options.policy, options.mode, *more])


@pytest.mark.parametrize("options", WHOLE if FULL else SMOKE, ids=named)
def test_tokens_are_those_of_the_reference(engine, reference, prompts, options, ties):
    hold_to_the_reference(engine, reference, prompts, options, ties)


@pytest.mark.parametrize("policy, given", TRIATTENTION, ids=str)
def test_triattention_says_what_the_reference_does(engine, reference, prompts, centres, policy, given, ties):
    options = Options(policy, BUDGET, **{"window": 48, "centres": centres, **given})
    hold_to_the_reference(engine, reference, prompts, options, ties)


def hold_to_the_reference(engine, reference, prompts, options, ties):
    run = engine.run(prompts, replace(options, record_masks=True), COUNT)
    evicted = {record.request.split("-")[0] for record in run.evictions}
    assert len(evicted) == len(prompts)
    if options.buffer is not None:
        assert max(record.event for record in run.evictions) >= 1
    parted = []
    for number in range(len(prompts)):
        assert_same(run, number, reference, parted)
    ties[named(options)] = (sum(parted), len(parted))
    assert run.free_blocks_end == run.pool_blocks
