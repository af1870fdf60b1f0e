"""The simulator is held to the scheduler in plain Python, request by request and time by time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreclaim.eviction_rules import RKV, AtPrefillEnd, BudgetAndBuffer
from kvreclaim.scheduler import Scheduler
from kvreclaim.scheduling import Request, SchedulerSettings
from kvreclaim.serving.eviction import Eviction, rkv
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.simulate import Copies, simulate
from kvreclaim.serving.steptime import StepTime
from kvreclaim.serving.trace import Trace

# Constants whose sums are no round numbers, so that two orders of summing would show.
STEP = StepTime(0.0123, 3.3e-4, 1.7e-6, 9.1e-5)


def traces():
    """Traces of up to 24 requests that arrive in bursts."""
    request = st.tuples(
        st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.3, 2.0]), st.integers(1, 70), st.integers(1, 40)
    )
    return st.lists(request, min_size=1, max_size=24).map(
        lambda rows: Trace(
            np.cumsum([gap for gap, _, _ in rows]),
            np.array([prompt for _, prompt, _ in rows]),
            np.array([output for _, _, output in rows]),
        )
    )


def limits():
    """Pools so small that requests wait, are preempted and refused."""
    return st.builds(
        SchedulerSettings,
        blocks=st.integers(6, 40),
        block_size=st.sampled_from([1, 3, 4, 16]),
        max_num_seqs=st.integers(1, 8),
        max_num_batched_tokens=st.sampled_from([8, 16, 50, 200]),
        reserve_full_input=st.booleans(),
        chunked_prefill=st.booleans(),
        watermark=st.sampled_from([0.0, 0.1]),
    )


def plain(trace, limits, rule=None, copies=None):
    """Run the scheduler over a trace; return times and counts by request, and what each step left."""
    made = Scheduler(limits, rule)
    now, place, ends, states = 0.0, 0, [], []
    starts = []
    admitted = set()
    while place < trace.requests or made.running or made.waiting:
        if not made.running and not made.waiting:
            now = max(now, trace.arrival[place])
        while place < trace.requests and trace.arrival[place] <= now:
            tokens = int(trace.prompt[place] + trace.output[place] - 1)
            too_long = not limits.chunked_prefill and tokens > limits.max_num_batched_tokens
            if limits.blocks_for(tokens) <= limits.blocks and not too_long:
                made.add(Request(place, int(trace.prompt[place]), int(trace.output[place])))
                admitted.add(place)
            place += 1
        if not made.running and not made.waiting:
            continue
        before = made.pool.free_blocks
        step = made.step()
        made.pool.check_integrity()
        starts.append(now)
        if not step.scheduled:  # the one that ran preempted itself: no time passes in the simulator
            ends.append(now)
            continue
        seconds = STEP.seconds(step.decodes, step.kv_tokens, step.prefill_tokens)
        if copies is not None and step.evictions:
            moved = 0.0
            for event in dropping(step):
                moved += copies.event + copies.token * event.slots_left
            seconds += moved
        now += seconds
        ends.append(now)
        states.append((before, step))
    return made, admitted, starts, ends, states


def dropping(step):
    """The evictions that drop something: the scheduler lists the others too, which move and free nothing."""
    return [event for event in step.evictions if event.slots_left < event.slots]


def agrees(trace, limits, rule=None, eviction=None, copies=None, *, aggregate=True):
    made, admitted, starts, ends, states = plain(trace, limits, rule, copies)
    result = simulate(trace, limits, STEP, eviction, copies, interval=0.5, aggregate=aggregate)
    state = result.each
    assert set(np.flatnonzero(state.status == places.FINISHED)) == admitted
    assert (
        set(np.flatnonzero(state.status == places.REFUSED_REQUEST)) == set(range(trace.requests)) - admitted
    )
    for name, outcome in made.outcomes.items():
        assert state.scheduled[name] == starts[outcome.scheduled]
        assert state.first_token[name] == ends[outcome.first_token]
        assert state.finish[name] == ends[outcome.finish]
        assert state.preemptions[name] == outcome.preemptions
    outcomes = made.outcomes.values()
    assert result.count(places.STEPS) == len(states)
    assert result.count(places.EVICTIONS) == sum(len(dropping(step)) for _, step in states)
    assert result.count(places.BLOCKS_FREED) == sum(outcome.blocks_freed for outcome in outcomes)
    assert result.count(places.PEAK_RUNNING) == max((step.running for _, step in states), default=0)
    assert result.count(places.FREE) == limits.blocks
    return result


@given(traces(), limits(), st.booleans())
@settings(max_examples=300)
def test_without_eviction(trace, limits, aggregate):
    agrees(trace, limits, aggregate=aggregate)


@given(traces(), limits(), st.integers(1, 40))
def test_packing_at_the_end_of_prefill(trace, limits, kept):
    copies = Copies(1e-3, 1e-5)
    rule = AtPrefillEnd(lambda progress: min(kept, progress.slots))
    agrees(trace, limits, rule, Eviction("pack", lambda length: np.minimum(length, kept)), copies)


@given(traces(), limits(), st.integers(1, 40), st.floats(0, 1))
def test_freeing_whole_blocks_at_the_end_of_prefill(trace, limits, kept, share):
    def dead(length, left, block_size):
        return ((length - left) * share).astype(int) // block_size

    def left(progress):
        slots = np.array([progress.slots])
        survive = np.minimum(slots, kept)
        freed = min(dead(slots, survive, limits.block_size)[0], (slots - survive)[0] // limits.block_size)
        return int(slots[0] - freed * limits.block_size)

    eviction = Eviction("free", lambda length: np.minimum(length, kept), dead)
    made, _, _, _, _ = plain(trace, limits, AtPrefillEnd(left))
    result = simulate(trace, limits, STEP, eviction)
    for name, outcome in made.outcomes.items():
        assert result.each.preemptions[name] == outcome.preemptions
    freed = sum(outcome.blocks_freed for outcome in made.outcomes.values())
    assert result.count(places.BLOCKS_FREED) == freed


@given(traces(), limits(), st.integers(1, 20), st.integers(1, 20))
def test_a_budget_and_a_buffer(trace, limits, budget, buffer):
    eviction = Eviction("pack", budget=budget, buffer=buffer)
    agrees(trace, limits, BudgetAndBuffer(budget, buffer), eviction, Copies(2e-3, 3e-6))


@given(traces(), limits(), st.integers(1, 20), st.integers(1, 10))
def test_rkv(trace, limits, budget, buffer):
    agrees(trace, limits, RKV(budget, buffer), rkv(budget, buffer), Copies(2e-3, 3e-6))


@given(traces(), limits())
def test_masks_and_reuse_give_no_block_back(trace, limits):
    for mode in "mask", "reuse":
        result = simulate(trace, limits, STEP, Eviction(mode, lambda length: length // 2))
        assert result.count(places.BLOCKS_FREED) == 0
    full = simulate(trace, limits, STEP)
    masked = simulate(trace, limits, STEP, Eviction("mask", lambda length: length // 2))
    for times in "scheduled", "first_token", "finish":
        np.testing.assert_array_equal(getattr(masked.each, times), getattr(full.each, times))


@pytest.mark.parametrize(("prompt", "output", "kept"), [(32, 40, 8), (30, 7, 1), (33, 64, 32)])
def test_reuse_fills_the_holes_before_it_grows(prompt, output, kept):
    # Alone: at the peak it holds ceil(max(prompt, kept + output - 1) / B) blocks.
    trace = Trace(np.zeros(1), np.array([prompt]), np.array([output]))
    result = simulate(
        trace, SchedulerSettings(40, 4), STEP, Eviction("reuse", lambda length: 0 * length + kept)
    )
    assert result.count(places.PEAK_BLOCKS) == -(-max(prompt, kept + output - 1) // 4)


def evictions():
    """Evictions at the end of a prefill, in each mode, of a share and of all but so many tokens; or none."""
    return st.none() | st.builds(
        lambda mode, kept, share: Eviction(
            mode,
            lambda length: np.minimum(length, kept + (length * share).astype(int)),
            lambda length, left, block_size: (length - left) // block_size,
        ),
        st.sampled_from(["mask", "free", "pack", "reuse"]),
        st.integers(1, 40),
        st.floats(0, 1),
    )


@given(traces(), limits(), evictions(), st.integers(1, 24))
@settings(max_examples=400)
def test_both_paths_are_equal_bit_by_bit(trace, limits, eviction, window):
    copies = Copies(1e-3, 1e-5)
    parts = (trace, limits, STEP, eviction, copies)
    fast = simulate(*parts, interval=0.1, window=window)
    slow = simulate(*parts, interval=0.1, aggregate=False, window=window)
    for times in "scheduled", "first_token", "finish", "preemptions", "status":
        np.testing.assert_array_equal(getattr(fast.each, times), getattr(slow.each, times))
    np.testing.assert_array_equal(fast.samples, slow.samples)
    same = [place for place in range(places.COUNTS) if place != places.SHORT_STEPS]
    np.testing.assert_array_equal(fast.counts[same], slow.counts[same])
    assert slow.count(places.SHORT_STEPS) == 0


@pytest.mark.parametrize("mode", ["mask", "free", "pack"])
def test_evictions_at_the_end_of_prefills_are_aggregated(mode):
    trace = Trace(np.arange(20) * 0.1, np.full(20, 50), np.full(20, 30))
    eviction = Eviction(mode, lambda length: length // 2, lambda length, left, size: (length - left) // size)
    found = simulate(trace, SchedulerSettings(1000, 4), STEP, eviction)
    assert found.count(places.SHORT_STEPS) == found.count(places.STEPS)
    assert found.count(places.EVICTIONS) == 20


@given(traces(), limits())
def test_samples_hold_what_the_step_around_them_leaves(trace, limits):
    _, admitted, starts, ends, states = plain(trace, limits)
    result = simulate(trace, limits, STEP, interval=0.05)
    busy = [(start, end) for start, end in zip(starts, ends, strict=True) if end > start]
    assert len(busy) == len(states)
    for row in result.samples:
        time = row[places.S_TIME]
        inside = [place for place, (start, end) in enumerate(busy) if start < time <= end]
        running = free = ended = None
        if inside:
            step = states[inside[0]][1]
            running, free, ended = step.running_after, step.free_blocks, busy[inside[0]][1]
        else:
            running, free, ended = 0, limits.blocks, time
        assert (row[places.S_RUNNING], row[places.S_FREE]) == (running, free)
        arrived = sum(trace.arrival[name] <= time for name in admitted)
        gone = np.count_nonzero(result.each.finish <= ended)
        assert running + row[places.S_WAITING] + gone == arrived
        held = limits.blocks - free
        assert row[places.S_FILLED] <= held * limits.block_size
