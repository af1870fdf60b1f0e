"""Shared prefixes, pages and groups of layers in the simulator, against plain Python."""

from dataclasses import replace

import numpy as np
import pytest
from grouped_scheduler import GroupedScheduler
from hypothesis import given
from hypothesis import strategies as st
from shared_scheduler import SharedScheduler
from test_serving_scheduler import STEP, limits, traces

from kvreclaim.errors import InputError
from kvreclaim.eviction_rules import RKV, AtPrefillEnd, BudgetAndBuffer
from kvreclaim.scheduling import Request, SchedulerSettings
from kvreclaim.serving.eviction import Eviction, rkv
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.memory import Memory
from kvreclaim.serving.simulate import simulate
from kvreclaim.serving.trace import Prefixes, Trace


@st.composite
def sharing(draw):
    """A trace of a few families of prompts with common beginnings, and limits that go with its hashes."""
    trace = draw(traces())
    setting = draw(limits())
    size = setting.block_size * draw(st.sampled_from([1, 2]))
    rows, numbers = [], {}
    for prompt in trace.prompt:
        family, common = draw(st.integers(0, 2)), draw(st.integers(0, 6))
        own = len(rows)
        row = []
        for place in range(-(-int(prompt) // size)):
            name = (family, place) if place < common else (family, place, own)
            row.append(numbers.setdefault(name, len(numbers)))
        rows.append(row)
    offsets = np.cumsum([0, *map(len, rows)])
    ids = np.array([number for row in rows for number in row], np.int32)
    return replace(trace, prefixes=Prefixes(size, offsets, ids)), setting


def keys(trace, block_size):
    per_hash = trace.prefixes.block_tokens // block_size
    offsets, ids = trace.prefixes.offsets, trace.prefixes.ids
    found = {}
    for place in range(trace.requests):
        row = ids[offsets[place] : offsets[place + 1]]
        whole = [int(number) * per_hash + part for number in row for part in range(per_hash)]
        found[place] = whole[: int(trace.prompt[place]) // block_size]
    return found


def agrees(trace, setting, rule, eviction):
    made = SharedScheduler(setting, keys(trace, setting.block_size), rule)
    now, place, ends, added = 0.0, 0, [], set()
    while place < trace.requests or made.running or made.waiting:
        if not made.running and not made.waiting:
            now = max(now, trace.arrival[place])
        while place < trace.requests and trace.arrival[place] <= now:
            tokens = int(trace.prompt[place] + trace.output[place] - 1)
            too_long = not setting.chunked_prefill and tokens > setting.max_num_batched_tokens
            if setting.blocks_for(tokens) <= setting.blocks and not too_long:
                made.add(Request(place, int(trace.prompt[place]), int(trace.output[place])))
                added.add(place)
            place += 1
        if not made.running and not made.waiting:
            continue
        step = made.step()
        made.pool.check_integrity()
        if step.scheduled:
            now += STEP.seconds(step.decodes, step.kv_tokens, step.prefill_tokens)
        ends.append(now)
    result = simulate(trace, setting, STEP, eviction, memory=Memory(share_prefixes=True))
    assert set(np.flatnonzero(result.each.served)) == added
    for name, outcome in made.outcomes.items():
        assert result.each.first_token[name] == ends[outcome.first_token]
        assert result.each.finish[name] == ends[outcome.finish]
        assert result.each.preemptions[name] == outcome.preemptions
    assert result.count(places.HIT_TOKENS) == made.hit_tokens
    freed = sum(outcome.blocks_freed for outcome in made.outcomes.values())
    assert result.count(places.BLOCKS_FREED) == freed
    assert result.count(places.FREE) == setting.blocks


@given(sharing())
def test_shared_prefixes(case):
    agrees(*case, None, None)


@given(sharing(), st.integers(1, 30))
def test_shared_blocks_are_neither_evicted_nor_counted_as_freed(case, kept):
    rule = AtPrefillEnd(lambda progress: min(kept, progress.slots))
    agrees(*case, rule, Eviction("pack", lambda length: np.minimum(length, kept)))


def test_blocks_whose_other_reader_ends_in_the_same_step_are_evicted():
    prefixes = Prefixes(16, np.array([0, 1, 3]), np.array([0, 0, 1], np.int32))
    trace = Trace(np.zeros(2), np.array([16, 17]), np.array([1, 2]), prefixes=prefixes)
    setting = SchedulerSettings(6, 16, max_num_seqs=2, max_num_batched_tokens=17)
    rule = AtPrefillEnd(lambda progress: min(1, progress.slots))
    agrees(trace, setting, rule, Eviction("pack", lambda length: np.minimum(length, 1)))


def test_one_token_left_of_a_request_that_finds_its_whole_prompt_is_a_decode():
    counts, own = np.array([5, 17, 6]), np.arange(28, dtype=np.int32)
    own[22] = own[5]  # the last two prompts begin alike
    prefixes = Prefixes(3, np.concatenate([[0], np.cumsum(counts)]), own)
    trace = Trace(np.zeros(3), np.array([13, 50, 18]), np.array([7, 3, 2]), prefixes=prefixes)
    agrees(trace, SchedulerSettings(30, 3, max_num_seqs=3, max_num_batched_tokens=16), None, None)


@given(traces(), limits())
def test_without_equal_hashes_nothing_is_shared(trace, setting):
    counts = -(-trace.prompt // setting.block_size)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    lone = replace(
        trace, prefixes=Prefixes(setting.block_size, offsets, np.arange(offsets[-1], dtype=np.int32))
    )
    plain = simulate(trace, setting, STEP)
    shared = simulate(lone, setting, STEP, memory=Memory(share_prefixes=True))
    if not plain.count(places.PREEMPTIONS):  # one that was preempted finds its own blocks again
        np.testing.assert_array_equal(shared.each.finish, plain.each.finish)


# Pages


@given(traces(), limits(), st.integers(1, 9))
def test_pages_hold_what_the_blocks_need_and_no_more_than_blocks(trace, setting, per_page):
    plain = simulate(trace, setting, STEP, interval=0.05)
    paged = simulate(trace, setting, STEP, memory=Memory(page_blocks=per_page), interval=0.05)
    np.testing.assert_array_equal(plain.each.finish, paged.each.finish)
    np.testing.assert_array_equal(plain.samples[:, : places.S_PAGES], paged.samples[:, : places.S_PAGES])
    held = setting.blocks - paged.samples[:, places.S_FREE]
    pages = paged.samples[:, places.S_PAGES]
    assert (pages * per_page >= held + 1).all()  # and the null block
    assert (pages <= held + 1).all()
    assert paged.peak_pages <= -(-(setting.blocks + 1) // per_page)
    if per_page == 1:
        np.testing.assert_array_equal(pages, held + 1)


def test_blocks_that_grow_only_fill_pages_before_taking_another():
    # One request after the other, none ends before all have begun: pages = ceil((blocks + null) / per page).
    trace = Trace(np.arange(3.0) / 1e3, np.array([40, 40, 40]), np.array([9, 9, 9]))
    result = simulate(trace, SchedulerSettings(99, 4), STEP, memory=Memory(page_blocks=8))
    assert result.count(places.PEAK_BLOCKS) == 3 * 12
    assert result.peak_pages == -(-(36 + 1) // 8)


# Groups of layers


def windowed_blocks(windows, computed, tokens, block_size):
    """Blocks with a token that some later query still sees, or that is computed now, counted one by one."""
    total = 0
    for window in windows:
        first = 0 if window is None else max(0, computed - window + 1)
        total += len({token // block_size for token in range(first, computed + tokens)})
    return total


@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.lists(st.one_of(st.none(), st.integers(1, 40)), min_size=1, max_size=4),
    st.sampled_from([1, 4, 16]),
)
def test_a_group_holds_the_blocks_of_its_window(prompt, output, windows, block_size):
    trace = Trace(np.zeros(1), np.array([prompt]), np.array([output]))
    setting = SchedulerSettings(10_000, block_size, max_num_batched_tokens=32)
    result = simulate(trace, setting, STEP, memory=Memory(group_windows=tuple(windows)))
    computed, most = 0, 0
    while computed < prompt + output - 1:
        tokens = min(32, prompt - computed) if computed < prompt else 1
        most = max(most, windowed_blocks(windows, computed, tokens, block_size))
        computed += tokens
    assert result.count(places.PEAK_BLOCKS) == most


@given(traces(), limits())
def test_one_group_without_a_window_is_no_group(trace, setting):
    plain = simulate(trace, setting, STEP)
    grouped = simulate(trace, setting, STEP, memory=Memory(group_windows=(None,)))
    np.testing.assert_array_equal(plain.each.finish, grouped.each.finish)


GROUPS = st.lists(st.one_of(st.none(), st.integers(1, 30)), min_size=1, max_size=3).map(tuple)
SEEING_ALL = st.lists(st.one_of(st.none(), st.integers(1, 30)), max_size=2).map(lambda some: (*some, None))


def agrees_in_groups(trace, setting, windows, rule=None, eviction=None, per_page=0):
    """Hold the simulator to `GroupedScheduler`, over the requests that both take."""
    memory = Memory(group_windows=windows, page_blocks=per_page)
    tokens = trace.prompt.astype(np.int64) + trace.output - 1
    taken = memory.most_blocks(tokens, setting) <= setting.blocks
    if not setting.chunked_prefill:
        taken &= tokens <= setting.max_num_batched_tokens
    made = GroupedScheduler(setting, windows, rule)
    made.add = lambda request, add=made.add: _without_refusal(made, add, request)
    now, place, ends = 0.0, 0, []
    while place < trace.requests or made.running or made.waiting:
        if not made.running and not made.waiting:
            now = max(now, trace.arrival[place])
        while place < trace.requests and trace.arrival[place] <= now:
            if taken[place]:
                made.add(Request(place, int(trace.prompt[place]), int(trace.output[place])))
            place += 1
        if not made.running and not made.waiting:
            continue
        step = made.step()
        made.pool.check_integrity()
        if step.scheduled:
            now += STEP.seconds(step.decodes, step.kv_tokens, step.prefill_tokens)
        ends.append(now)
    result = simulate(trace, setting, STEP, eviction, memory=memory, interval=0.1)
    np.testing.assert_array_equal(result.each.served, taken)
    for name, outcome in made.outcomes.items():
        assert result.each.first_token[name] == ends[outcome.first_token]
        assert result.each.finish[name] == ends[outcome.finish]
        assert result.each.preemptions[name] == outcome.preemptions
    freed = sum(outcome.blocks_freed for outcome in made.outcomes.values())
    assert result.count(places.BLOCKS_FREED) == freed
    assert result.count(places.FREE) == setting.blocks
    return result


def _without_refusal(made, add, request):
    """Add a request that the groups' windows let fit, though it would not fit without them."""
    settings, made.settings = made.settings, replace(made.settings, blocks=10**9)
    add(request)
    made.settings = settings


@given(traces(), limits(), GROUPS)
def test_groups(trace, setting, windows):
    agrees_in_groups(trace, setting, windows)


@given(traces(), limits(), SEEING_ALL, st.integers(1, 30))
def test_packing_in_the_groups_that_see_all(trace, setting, windows, kept):
    rule = AtPrefillEnd(lambda progress: min(kept, progress.slots))
    agrees_in_groups(trace, setting, windows, rule, Eviction("pack", lambda length: np.minimum(length, kept)))


@given(traces(), limits(), SEEING_ALL, st.integers(1, 30))
def test_freeing_whole_blocks_in_the_groups_that_see_all(trace, setting, windows, kept):
    def dead(length, left, block_size):
        return (length - left) // (2 * block_size)

    def left(progress):
        survive = min(kept, progress.slots)
        freed = dead(progress.slots, survive, setting.block_size)
        return progress.slots - freed * setting.block_size

    eviction = Eviction("free", lambda length: np.minimum(length, kept), dead)
    agrees_in_groups(trace, setting, windows, AtPrefillEnd(left), eviction)


@given(traces(), limits(), SEEING_ALL, st.integers(1, 20), st.integers(1, 10), st.booleans())
def test_evicting_while_decoding_in_the_groups_that_see_all(trace, setting, windows, budget, buffer, reserve):
    if reserve:
        agrees_in_groups(trace, setting, windows, RKV(budget, buffer), rkv(budget, buffer))
    else:
        rule = BudgetAndBuffer(budget, buffer)
        agrees_in_groups(trace, setting, windows, rule, Eviction("pack", budget=budget, buffer=buffer))


@given(traces(), limits(), SEEING_ALL)
def test_masks_and_reuse_give_nothing_back_in_groups(trace, setting, windows):
    memory = Memory(group_windows=windows)
    full = simulate(trace, setting, STEP, memory=memory)
    for mode in "mask", "reuse":
        made = simulate(trace, setting, STEP, Eviction(mode, lambda length: length // 2), memory=memory)
        assert made.count(places.BLOCKS_FREED) == 0
        if mode == "mask":
            np.testing.assert_array_equal(made.each.finish, full.each.finish)


@given(traces(), limits(), SEEING_ALL, st.integers(1, 9), st.booleans())
def test_pages_under_groups(trace, setting, windows, per_page, evicting):
    rule = AtPrefillEnd(lambda progress: min(9, progress.slots)) if evicting else None
    eviction = Eviction("pack", lambda length: np.minimum(length, 9)) if evicting else None
    paged = agrees_in_groups(trace, setting, windows, rule, eviction, per_page)
    pages = paged.samples[:, places.S_PAGES]
    held = setting.blocks - paged.samples[:, places.S_FREE]
    assert (pages * per_page >= held + 1).all()  # and the null block
    assert (pages <= held + 1).all()
    if per_page == 1:
        np.testing.assert_array_equal(pages, held + 1)


def test_pages_go_back_when_the_window_has_passed_them():
    # One request alone; blocks of 4, its group sees 8 tokens: it holds at most 3 blocks, however long the
    # output, and takes the one that it gave back. With the null block these are 2 pages of 2.
    trace = Trace(np.zeros(1), np.array([4]), np.array([400]))
    memory = Memory(group_windows=(8,), page_blocks=2)
    result = simulate(trace, SchedulerSettings(99, 4, max_num_batched_tokens=8), STEP, memory=memory)
    assert result.count(places.PEAK_BLOCKS) == 3
    assert result.peak_pages == 2


def test_a_windowed_group_lets_more_requests_run():
    trace = Trace(np.zeros(8), np.full(8, 256), np.full(8, 64))
    setting = SchedulerSettings(160, 16, max_num_batched_tokens=64)
    full = simulate(trace, setting, STEP, memory=Memory(group_windows=(None, None)))
    hybrid = simulate(trace, setting, STEP, memory=Memory(group_windows=(None, 32)))
    assert hybrid.count(places.PEAK_RUNNING) > full.count(places.PEAK_RUNNING)


@pytest.mark.parametrize(
    ("memory", "eviction", "words"),
    [
        (Memory(share_prefixes=True), None, "no prefix hashes"),
        (
            Memory(group_windows=(4,)),
            Eviction("mask", lambda length: length),
            "every group of layers has a window",
        ),
        (
            Memory(share_prefixes=True, group_windows=(None, 4)),
            None,
            "groups of layers are simulated without shared",
        ),
        (Memory(share_prefixes=True, page_blocks=4), None, "shared prefixes are simulated without pages"),
    ],
)
def test_what_cannot_be_combined(memory, eviction, words):
    trace = Trace(np.zeros(1), np.array([5]), np.array([5]))
    with pytest.raises(InputError, match=words):
        simulate(trace, SchedulerSettings(9, 4), STEP, eviction, memory=memory)
