"""Whole dead blocks that come free while decoding, against a table of single slots."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreclaim.errors import InputError
from kvreclaim.scheduling import SchedulerSettings
from kvreclaim.serving.eviction import SINKS, Eviction
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.scenario import Scenario
from kvreclaim.serving.simulate import simulate
from kvreclaim.serving.steptime import StepTime
from kvreclaim.serving.trace import Trace


def by_slots(prompt, output, budget, buffer, size, dying, protect):
    """One request alone, slot by slot: blocks that come back, and those held after each step."""
    blocks, freed, held = [], 0, []

    def compute():
        if not blocks or len(blocks[-1]) == size:
            blocks.append([])
        blocks[-1].append(True)

    def evict(most):
        nonlocal freed, blocks
        alive = [(block, place) for block in blocks for place, lives in enumerate(block) if lives]
        first = min(len(alive), prompt) if protect else 0
        if len(alive) - first <= most:
            return
        left = first + budget
        sinks = min(first if protect else SINKS, left) if dying == "before window" else 0
        gone = alive[sinks : len(alive) - (left - sinks)]
        for block, place in gone:
            block[place] = False
        kept = [block for block in blocks if any(block) or len(block) < size]
        freed += len(blocks) - len(kept)
        blocks = kept

    for _ in range(prompt):
        compute()
    for step in range(1, output):  # in its last step a request is gone
        evict(budget if step == 1 else budget + buffer - 1)
        held.append(len(blocks))
        compute()
    return freed, held


def alone(prompt, output, size, eviction):
    """One request in an ample pool, a second a step."""
    return simulate(
        Trace(np.zeros(1), np.array([prompt]), np.array([output])),
        SchedulerSettings(1000, size),
        StepTime(1.0, 0.0, 0.0, 0.0),
        eviction,
        interval=1.0,
    )


@given(
    *(st.integers(1, 60), st.integers(1, 90), st.integers(1, 30), st.integers(1, 20), st.integers(1, 9)),
    st.booleans(),
)
def test_a_window_that_moves_on_frees_the_blocks_it_has_passed(prompt, output, budget, buffer, size, protect):
    freed, held = by_slots(prompt, output, budget, buffer, size, "before window", protect)
    eviction = Eviction("free", budget=budget, buffer=buffer, dying="before window", protect_prompt=protect)
    found = alone(prompt, output, size, eviction)
    assert found.count(places.BLOCKS_FREED) == freed
    seen = 1000 - found.samples[:, places.S_FREE]
    assert seen.max(initial=0) == max(held, default=0)


@given(*(st.integers(1, 200) for _ in range(2)), *(st.integers(1, 30) for _ in range(3)))
def test_whole_blocks_leave_less_than_a_block_dead(prompt, output, budget, buffer, size):
    eviction = Eviction("free", budget=budget, buffer=buffer, dying="whole")
    found = alone(prompt, output, size, eviction)
    assert (found.samples[:, places.S_DEAD] < size).all()
    tokens = prompt + output - 1
    most = math.ceil(max(prompt, budget + buffer + size) / size)
    assert found.count(places.PEAK_BLOCKS) <= min(most + 1, math.ceil(tokens / size))


ROOT = Path(__file__).parents[1]
TRACE = str(ROOT / "examples/traces/azure-conv-1000.csv")
RULE = {"mode": "free", "evict_while_decoding": "full-buffer", "budget": 256, "buffer": 128}


def test_a_policy_says_what_dies_while_decoding():
    common = {"trace": TRACE, "blocks": 3000, "requests": 100, "ratio": 0.0, **RULE}
    freed = {
        policy: Scenario(policy=policy, **common).run().count(places.BLOCKS_FREED)
        for policy in ("streaming-llm", "block-wise", "per-head")
    }
    assert freed["block-wise"] > freed["streaming-llm"] > 0 == freed["per-head"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "full-buffer frees while decoding is not known without a policy"),
        ({"evict_while_decoding": "rkv"}, "rkv frees while decoding is not known without a policy"),
        ({"policy": "scattered"}, "not known from scattered"),
        ({"masks": str(ROOT / "examples/masks/smollm2-135m-t1024-r50-jargon_a.npz")}, "from recorded masks"),
    ],
)
def test_of_the_others_nothing_is_known(changes, words):
    with pytest.raises(InputError, match=words):
        Scenario(**{**RULE, **changes}).eviction()
