"""Matched quality: r* against inverses worked out by hand, and the ledger of the masks made there."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import prose_ids, smollm2

from kvreclaim import BlockLayout, InputError, KeepMask, audit
from kvreclaim.capture.matched.fit import (
    ABOVE,
    BELOW,
    INSIDE,
    LEAST_KL,
    Match,
    Reference,
    Sweep,
    match,
    match_all,
)
from kvreclaim.capture.matched.ledger import MatchedRow, prompt_rows, summarise
from kvreclaim.capture.prefill import capture
from kvreclaim.capture.presses import make
from kvreclaim.capture.quality import Continuation
from kvreclaim.layout import KVGeometry

RATIOS = (0.1, 0.25, 0.5, 0.75, 0.9)
kls = st.lists(st.floats(1e-4, 2), min_size=5, max_size=5).map(tuple)
targets = st.floats(1e-4, 2)


def sweep_of(values, policy="h2o", prompt="p", ratios=RATIOS):
    return Sweep(prompt, policy, ratios, tuple(values))


def test_a_reference_that_does_no_harm_is_matched_by_what_does_none():
    sweeps = [
        Sweep("p", "snapkv", (0.5, 0.9), (0.0, 0.2)),
        Sweep("p", "harmless", (0.5, 0.9), (0.0, 0.0)),
        Sweep("p", "harmful", (0.5, 0.9), (0.1, 0.2)),
    ]
    found = {one.policy: (one.ratio, one.reached) for one in match_all(sweeps)}
    assert found == {"snapkv": (0.5, INSIDE), "harmless": (0.9, INSIDE), "harmful": (0.0, BELOW)}
    assert all(one.target_kl == LEAST_KL for one in match_all(sweeps))


@pytest.mark.parametrize("ratio", [0.1, 0.2, 0.5, 0.6, 0.9])
def test_a_straight_logarithm_is_inverted(ratio):
    sweep = sweep_of(math.exp(5 * r - 4) for r in RATIOS)
    found = match(sweep, math.exp(5 * ratio - 4))
    assert (found.prompt, found.policy, found.target_kl) == ("p", "h2o", math.exp(5 * ratio - 4))
    assert found.ratio == pytest.approx(ratio)


@given(kls, targets)
def test_the_curve_at_the_match_is_the_target(values, target):
    """On sorted KLs the fit is the values themselves, and r* the inverse of NumPy's interpolation."""
    values = np.sort(values)
    found = match(sweep_of(values), target)
    if found.reached == INSIDE:
        assert np.interp(found.ratio, RATIOS, np.log(values)) == pytest.approx(math.log(target), abs=1e-9)
        assert RATIOS[0] <= found.ratio <= RATIOS[-1]
    elif found.reached == ABOVE:
        assert values[-1] < target and found.ratio == 0.9
    else:
        assert values[0] > target and found.ratio == 0.0


@given(kls, targets, targets)
def test_a_laxer_target_allows_no_less(values, one, other):
    lower, higher = sorted((one, other))
    assert match(sweep_of(values), lower).ratio <= match(sweep_of(values), higher).ratio


@given(kls, targets, st.permutations(range(5)))
def test_the_order_of_a_sweep_does_not_matter(values, target, order):
    shuffled = Sweep("p", "h2o", tuple(RATIOS[i] for i in order), tuple(values[i] for i in order))
    assert match(shuffled, target) == match(sweep_of(values), target)


def test_where_noise_falls_neighbours_are_pooled():
    values = (0.01, 0.04, 0.01, 0.08, 0.16)
    pooled = 0.02  # the geometric mean of .04 and .01
    assert match(sweep_of(values), pooled * 1.000001).ratio == pytest.approx(0.5, abs=1e-5)
    assert match(sweep_of(values), pooled / 1.000001).ratio == pytest.approx(0.25, abs=1e-5)
    assert match(sweep_of(values), 0.04).ratio == pytest.approx(0.625)


def test_outside_the_sweep_is_a_bound_and_said_to_be():
    values = (0.01, 0.02, 0.04, 0.08, 0.16)
    assert match(sweep_of(values), 0.009) == Match("p", "h2o", 0.009, 0.0, BELOW)
    assert match(sweep_of(values), 0.2) == Match("p", "h2o", 0.2, 0.9, ABOVE)
    assert match(sweep_of(values), 0.01).reached == match(sweep_of(values), 0.16).reached == INSIDE


def test_a_kl_of_nothing_counts_as_the_least():
    assert match(sweep_of((0, -1e-12, 0.01, 0.02, 0.04)), LEAST_KL).ratio == pytest.approx(0.25)


@given(kls, kls, kls)
def test_snapkv_matches_itself_at_a_half_whatever_its_noise(noisy, other, third):
    sweeps = [
        sweep_of(noisy, "snapkv", "p"),
        sweep_of(other, "h2o", "p"),
        sweep_of(third, "snapkv", "q"),
        sweep_of(other, "h2o", "q"),
    ]
    matches = match_all(sweeps)
    assert [one.target_kl for one in matches] == [noisy[2], noisy[2], third[2], third[2]]
    assert all((one.ratio, one.reached) == (0.5, INSIDE) for one in matches if one.policy == "snapkv")
    assert matches[1] == match(sweeps[1], noisy[2]) and matches[3] == match(sweeps[3], third[2])


@given(kls)
def test_a_policy_equal_to_snapkv_matches_at_a_half_where_its_kl_rises(values):
    values = np.exp(np.sort(np.log(values)) + np.arange(5) * 1e-6)
    matches = match_all([sweep_of(values, "snapkv"), sweep_of(values, "h2o")])
    assert matches[1].ratio == pytest.approx(0.5)


def test_the_target_may_be_a_number_or_another_policy():
    sweeps = [sweep_of((0.01, 0.02, 0.04, 0.08, 0.16), name) for name in ("h2o", "tova")]
    assert match_all(sweeps, 0.08) == [match(sweep, 0.08) for sweep in sweeps]
    assert [one.ratio for one in match_all(sweeps, Reference("tova", 0.25))] == [0.25, 0.25]


def test_bad_sweeps_and_targets_are_refused():
    good = (0.01, 0.02, 0.04, 0.08, 0.16)
    with pytest.raises(InputError, match=r"snapkv was not measured at ratio 0\.5 on p"):
        match_all([sweep_of(good)])
    with pytest.raises(InputError, match=r"snapkv was not measured at ratio 0\.3 on p"):
        match_all([sweep_of(good, "snapkv")], Reference(ratio=0.3))
    with pytest.raises(InputError, match="target_kl is 0"):
        match_all([sweep_of(good)], 0.0)
    with pytest.raises(InputError, match="at least one, each once"):
        Sweep("p", "h2o", (), ())
    with pytest.raises(InputError, match="at least one, each once"):
        Sweep("p", "h2o", (0.5, 0.5), (0.1, 0.2))
    with pytest.raises(InputError, match="one finite KL for each"):
        Sweep("p", "h2o", (0.5,), (math.nan,))
    with pytest.raises(InputError, match="one finite KL for each"):
        Sweep("p", "h2o", (0.5,), (0.1, 0.2))
    with pytest.raises(InputError, match="a ratio of the sweep of h2o on p is 0"):
        Sweep("p", "h2o", (0.0,), (0.1,))


GEOMETRY = KVGeometry("two heads", 2, 2, 8, "float32")
LAYERS, HEADS, TOKENS = 2, 2, 128


def scattered(ratio, seed=0):
    scores = np.random.default_rng(seed).random((LAYERS, HEADS, TOKENS))
    return KeepMask(scores.argsort(-1).argsort(-1) >= round(ratio * TOKENS))


def recent(ratio):
    return KeepMask(np.broadcast_to(np.arange(TOKENS) >= round(ratio * TOKENS), (LAYERS, HEADS, TOKENS)))


def matches_at(**ratios):
    return [Match("p", policy, 0.02, ratio, INSIDE) for policy, ratio in ratios.items()]


def test_masks_are_made_again_at_the_match_once_a_prompt():
    asked = []

    def remake(prompt, ratios):
        asked.append((prompt, ratios))
        return {policy: recent(ratio) for policy, ratio in ratios.items()}

    matches = [Match(prompt, policy, 0.02, 0.3, INSIDE) for prompt in "pq" for policy in ("a", "b")]
    rows = prompt_rows(matches, remake)
    assert asked == [("p", {"a": 0.3, "b": 0.3}), ("q", {"a": 0.3, "b": 0.3})]
    # Of 8 blocks .3 would be 2.4; what the mask really frees is 2.
    assert {row.physical_reclaim for row in rows if row.remedy == "zero_copy"} == {0.25}
    assert {row.retained for row in rows} == {90 / 128}


def test_rows_are_the_audit_of_each_mask():
    masks = {"far": scattered(0.6), "near": recent(0.6)}
    rows = prompt_rows(matches_at(far=0.6, near=0.6), lambda *_: masks, geometry=GEOMETRY, request_blocks=8)
    assert len(rows) == 2 * 3 * 3
    for row in rows:
        ledger = audit(masks[row.policy], BlockLayout(16, row.block_tables), GEOMETRY)
        reclaim, moved = {
            "zero_copy": (ledger.physical_reclaim, 0),
            "compaction": (1 - ledger.compaction.min_blocks / ledger.blocks, ledger.compaction.moved_bytes),
            "packing": (ledger.packing.physical_reclaim, ledger.packing.moved_bytes),
        }[row.remedy]
        assert row.physical_reclaim == pytest.approx(reclaim)
        assert row.moved_bytes == moved
        assert row.admitted == int(512 * reclaim + 1e-9) // 8
    shared = {row.remedy: row for row in rows if row.policy == "far" and row.block_tables == "shared"}
    assert shared["zero_copy"].physical_reclaim == 0 < shared["packing"].physical_reclaim
    assert shared["packing"].admitted == 512 * 4 // 8 // 8  # 51 of 128 tokens fill 4 of 8 blocks


def test_without_a_geometry_there_are_no_bytes():
    rows = prompt_rows(matches_at(near=0.5), lambda *_: {"near": recent(0.5)})
    assert {row.moved_bytes for row in rows} == {None}
    assert {row.moved_bytes for row in summarise(rows)} == {None}


def test_layouts_are_the_callers():
    layout = BlockLayout(32, "per_layer")
    rows = prompt_rows(matches_at(near=0.5), lambda *_: {"near": recent(0.5)}, layouts=[layout])
    assert {(row.block_tables, row.physical_reclaim) for row in rows} == {("per_layer", 0.5)}


def test_a_missing_mask_is_refused():
    with pytest.raises(InputError, match="remake gave no mask of far on p"):
        prompt_rows(matches_at(far=0.5), lambda *_: {})
    with pytest.raises(InputError, match="request_blocks is 0"):
        prompt_rows([], lambda *_: {}, request_blocks=0)


def test_a_summary_is_of_medians_over_prompts():
    ratios = dict(zip("pqrst", (0.0, 0.25, 0.5, 0.75, 0.9), strict=True))
    reached = dict(zip("pqrst", (BELOW, INSIDE, INSIDE, INSIDE, ABOVE), strict=True))
    matches = [
        Match(prompt, "near", 0.01 * i, ratios[prompt], reached[prompt]) for i, prompt in enumerate("pqrst")
    ]
    rows = prompt_rows(
        matches, lambda _, asked: {"near": recent(asked["near"])}, geometry=GEOMETRY, request_blocks=16
    )
    summary = summarise(rows)
    assert [(row.block_tables, row.remedy) for row in summary[:3]] == [
        ("shared", "zero_copy"),
        ("shared", "compaction"),
        ("shared", "packing"),
    ]
    first = summary[0]
    assert isinstance(first, MatchedRow)
    assert (first.target_kl, first.ratio, first.retained, first.physical_reclaim) == (0.02, 0.5, 0.5, 0.5)
    assert (first.admitted, first.moved_bytes) == (16, 0)
    assert (first.reached, first.below, first.above) == (3, 1, 1)
    assert first.low <= 0.5 <= first.high
    assert {first.low, first.high} <= {row.physical_reclaim for row in rows if row.remedy == "zero_copy"}


def test_smollm2_at_matched_quality():
    model, _ = smollm2()
    tokens, policies = 512, ("snapkv", "streaming-llm", "random")
    ids = prose_ids(tokens + 48)
    prompt = ids[:, :tokens]

    def masks_at(asked):
        return capture(
            model, {name: make(name.split()[0], ratio, tokens) for name, ratio in asked.items()}, prompt
        )

    swept = {f"{name} {ratio}": ratio for name in policies for ratio in (0.2, 0.5, 0.8)}
    captured = masks_at(swept)
    continuation = Continuation(model, captured.cache, ids[0, tokens:])
    found = {name: continuation.quality(mask).kl for name, mask in captured.masks.items()}
    sweeps = [
        Sweep("prose", name, (0.2, 0.5, 0.8), tuple(found[f"{name} {ratio}"] for ratio in (0.2, 0.5, 0.8)))
        for name in policies
    ]
    rows = summarise(prompt_rows(match_all(sweeps), lambda _, asked: masks_at(asked).masks))
    shared = {row.policy: row for row in rows if (row.block_tables, row.remedy) == ("shared", "zero_copy")}
    assert shared["snapkv"].ratio == shared["snapkv"].retained == 0.5
    assert shared["snapkv"].physical_reclaim == 0
    assert shared["random"].below == 1 and shared["random"].retained == 1
    assert shared["streaming-llm"].physical_reclaim > 0
