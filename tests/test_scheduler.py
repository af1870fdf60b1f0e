"""The scheduler by hand on small cases, against published figures, and its invariants on random ones."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduled_runs import run, scheduler

from kvreclaim.errors import InputError
from kvreclaim.eviction_rules import RKV, AtPrefillEnd, BudgetAndBuffer
from kvreclaim.scheduler import Scheduler
from kvreclaim.scheduling import Request, SchedulerSettings

# By hand


def test_one_request_takes_a_step_for_its_prompt_and_one_for_each_further_token():
    made = scheduler(requests=[(5, 3)])
    first, second, third = run(made)
    assert [dict(step.scheduled) for step in (first, second, third)] == [{"a": 5}, {"a": 1}, {"a": 1}]
    # 5 tokens fill 2 blocks of 4; the third token generated is never computed.
    assert [step.free_blocks for step in (first, second, third)] == [6, 6, 8]
    assert [(step.decodes, step.prefill_tokens, step.kv_tokens) for step in (first, second, third)] == [
        (0, 5, 5),
        (1, 0, 6),
        (1, 0, 7),
    ]
    assert (first.admitted, third.finished) == (("a",), ("a",))
    assert (third.running, third.running_after) == (1, 0)
    outcome = made.outcomes["a"]
    assert (outcome.queued, outcome.scheduled, outcome.first_token, outcome.finish) == (0, 0, 0, 2)


def test_a_prefill_is_cut_to_the_budget_that_decodes_leave():
    made = scheduler(blocks=10, requests=[(2, 9), (12, 1)], max_num_batched_tokens=5)
    steps = run(made)
    assert [dict(step.scheduled) for step in steps[:4]] == [
        {"a": 2, "b": 3},
        {"a": 1, "b": 4},
        {"a": 1, "b": 4},
        {"a": 1, "b": 1},
    ]
    assert made.outcomes["b"].first_token == made.outcomes["b"].finish == 3


def test_the_whole_input_is_reserved_for_but_only_the_chunk_is_taken():
    # "a" takes 2 of 4 blocks and 5 of 6 tokens; a chunk of "b" would fit, its 3 blocks do not.
    requests = [(5, 4), (12, 1)]
    limits = {"blocks": 4, "max_num_batched_tokens": 6}
    assert [step.admitted for step in run(scheduler(requests=requests, **limits))][:5] == [
        *(("a",), (), (), ()),
        ("b",),
    ]
    chunked = scheduler(requests=requests, reserve_full_input=False, **limits)
    assert chunked.step().admitted == ("a", "b")
    assert chunked.pool.free_blocks == 4 - 2 - 1


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_has_room_for_it():
    limits = {"blocks": 20, "max_num_batched_tokens": 12, "chunked_prefill": False}
    steps = run(scheduler(requests=[(8, 2), (8, 1)], **limits))
    assert [step.admitted for step in steps] == [("a",), ("b",)]


def test_nothing_overtakes_the_head_of_the_queue():
    steps = run(scheduler(blocks=4, requests=[(9, 2), (8, 1), (1, 1)]))
    assert [step.admitted for step in steps] == [("a",), (), ("b", "c")]


def test_at_most_so_many_run_at_once():
    steps = run(scheduler(requests=[(1, 2), (1, 2), (1, 2)], max_num_seqs=2))
    assert [step.running for step in steps] == [2, 2, 1, 1]
    assert [step.waiting for step in steps] == [1, 1, 0, 0]


def test_the_tail_is_preempted_and_computed_again_at_full_length():
    # Both prompts fill 2 of 4 blocks. Token 9 of "a" needs a third: "b" goes, with 1 token generated.
    made = scheduler(blocks=4, requests=[(8, 3), (8, 3)])
    steps = run(made)
    assert (steps[1].preempted, steps[1].admitted, steps[1].free_blocks) == (("b",), (), 1)
    assert (steps[1].running, steps[1].waiting) == (1, 1)
    assert [step.number for step in steps if "b" in step.scheduled] == [0, 3, 4]
    assert steps[3].scheduled["b"] == 9
    assert [made.outcomes[name].preemptions for name in "ab"] == [0, 1]
    assert made.outcomes["b"].first_token == 0  # not a second time


def test_preempted_requests_wait_in_their_old_order():
    made = scheduler(blocks=6, requests=[(8, 9), (4, 9), (4, 9), (4, 9), (8, 9)])
    assert made.step().admitted == ("a", "b", "c", "d")
    assert made.waiting == ("e",)
    preempted = next(step.preempted for step in made.steps() if step.preempted)
    assert preempted == ("d", "c")
    assert made.waiting == ("c", "d", "e")


def test_a_request_that_is_its_own_tail_preempts_itself():
    made = scheduler(blocks=3, requests=[(4, 5), (4, 5)])
    steps = run(made)
    assert [step.preempted for step in steps if step.preempted] == [("b",)]
    assert steps[1].scheduled == {"a": 1}


def test_the_watermark_counts_vllms_whole_pool_and_spares_the_first_request():
    settings = SchedulerSettings(blocks=19, block_size=4, watermark=0.1)
    assert settings.watermark_blocks == 2  # of 20, the null block included
    made = scheduler(blocks=19, requests=[(76, 1), (4, 1)], watermark=0.1)
    assert made.step().admitted == ("a",)
    made = scheduler(blocks=19, requests=[(60, 1), (12, 1)], watermark=0.1)
    assert made.step().admitted == ("a",)
    made = scheduler(blocks=19, requests=[(60, 1), (8, 1)], watermark=0.1)
    assert made.step().admitted == ("a", "b")


def test_requests_come_and_go_between_steps():
    made = scheduler(blocks=4, requests=[(8, 5), (8, 5)])
    made.step()
    made.add(Request("late", 4, 1))
    assert (made.running, made.waiting) == (("a", "b"), ("late",))
    made.abort("a")
    made.abort("late")
    assert made.pool.free_blocks == 2
    assert list(made.outcomes) == ["b"]
    assert made.step().scheduled == {"b": 1}
    with pytest.raises(InputError, match="'a' neither runs nor waits"):
        made.abort("a")


def test_an_empty_step_schedules_nothing():
    step = scheduler().step()
    assert (step.scheduled, step.running, step.waiting, step.free_blocks) == ({}, 0, 0, 8)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (("a", 1, 1), "'a' is there already"),
        (("big", 33, 1), "'big' needs 9 blocks for 33 tokens, the pool has 8"),
        (("grows", 30, 4), "'grows' needs 9 blocks for 33 tokens"),
    ],
)
def test_what_can_never_run_is_refused_by_name_and_the_rest_goes_on(request_, words):
    made = scheduler(requests=[(1, 1)])
    with pytest.raises(InputError, match=words):
        made.add(Request(*request_))
    assert [step.finished for step in run(made)] == [("a",)]


def test_a_prompt_that_may_not_be_cut_must_fit_the_budget():
    made = scheduler(max_num_batched_tokens=8, chunked_prefill=False)
    with pytest.raises(InputError, match="compute 9 tokens in one step, the budget is 8"):
        made.add(Request("a", 8, 2))


@pytest.mark.parametrize("fields", [("a", 0, 1), ("a", 1, 0), ("a", 1.5, 1), ("a", True, 1)])
def test_requests_of_no_tokens_are_refused(fields):
    with pytest.raises(InputError, match="request 'a'"):
        Request(*fields)


@pytest.mark.parametrize(
    "bad",
    [{name: 0} for name in ("blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")]
    + [{"watermark": -0.1}],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(InputError):
        SchedulerSettings(**{"blocks": 1, "block_size": 1, **bad})


def test_values_are_frozen():
    for value in (SchedulerSettings(1, 1), Request("a", 1, 1), scheduler().step(), BudgetAndBuffer(1, 1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.blocks = 2


# On random cases


@st.composite
def cases(draw):
    """Settings, a rule, and requests with the step at which each arrives, that the pool can hold alone."""
    block_size = draw(st.integers(1, 5))
    blocks = draw(st.integers(3, 14))
    settings = SchedulerSettings(
        blocks,
        block_size,
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(1, 20)),
        reserve_full_input=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.2])),
    )
    small = st.integers(1, 9)
    share = draw(st.floats(0, 1))
    rules = [None, AtPrefillEnd(lambda progress: int(share * progress.slots)), BudgetAndBuffer, RKV]
    rule = draw(st.sampled_from(rules))
    rule = rule(draw(small), draw(small)) if isinstance(rule, type) else rule
    most = blocks * block_size
    sizes = st.tuples(st.integers(1, most), st.integers(1, most), st.integers(0, 20)).filter(
        lambda size: size[0] + size[1] - 1 <= most
    )
    return settings, rule, draw(st.lists(sizes, min_size=1, max_size=8))


@given(cases())
def test_blocks_are_conserved_and_everyone_finishes(case):
    settings, rule, sizes = case
    made = Scheduler(settings, rule)
    arriving = sorted(enumerate(sizes), key=lambda pair: pair[1][2])
    events, freed = 0, 0
    for number in range(3000):
        while arriving and arriving[0][1][2] <= number:
            name, (prompt, output, _) = arriving.pop(0)
            made.add(Request(name, prompt, output))
        step = made.step()
        made.pool.check_integrity()
        assert sum(step.scheduled.values()) <= settings.max_num_batched_tokens
        assert step.decodes + step.prefill_tokens == sum(step.scheduled.values())
        assert len(step.scheduled) <= step.running <= settings.max_num_seqs
        assert not (step.admitted and step.preempted)
        assert step.running_after == step.running - len(step.finished) == len(made.running)
        assert (step.waiting, step.waiting_after) == (len(made.waiting),) * 2
        assert set(made.pool.requests) == set(made.running)
        assert step.free_blocks == settings.blocks - made.pool.used_blocks
        events += len(step.evictions)
        freed += sum(event.blocks_freed for event in step.evictions)
        if not arriving and not made.running and not made.waiting:
            break
    outcomes = made.outcomes
    assert len(outcomes) == len(sizes)
    for name, (_, _, arrival) in enumerate(sizes):
        outcome = outcomes[name]
        assert arrival == outcome.queued <= outcome.scheduled <= outcome.first_token <= outcome.finish
    assert sum(outcome.evictions for outcome in outcomes.values()) == events
    if not isinstance(rule, RKV):
        assert sum(outcome.blocks_freed for outcome in outcomes.values()) == freed
