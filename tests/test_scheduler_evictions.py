"""Evictions in the scheduler: when a request loses pairs and what goes back, by hand and as R-KV does."""

import dataclasses

import pytest
from scheduled_runs import keeping, run, scheduler

from kvreclaim.errors import InputError
from kvreclaim.eviction_rules import RKV, BudgetAndBuffer, Progress
from kvreclaim.scheduler import Scheduler
from kvreclaim.scheduling import EvictionEvent, Request, SchedulerSettings


def test_a_request_packed_at_the_end_of_its_prefill_gives_back_blocks():
    made = scheduler(blocks=8, rule=keeping(6), requests=[(15, 4), (15, 4), (3, 1)])
    steps = run(made)
    # 15 tokens in 4 blocks, 6 left in 2; "b" gets in with "a", both give back 2 at the step's end.
    assert steps[0].evictions == tuple(EvictionEvent(name, 15, 6, 2) for name in "ab")
    assert (steps[0].free_blocks, steps[0].kv_tokens) == (4, 30)
    # Slots 7, 8 and 9 follow: the third token opens a block.
    assert [step.kv_tokens for step in steps[1:]] == [7 + 7 + 3, 16, 18]
    assert [step.free_blocks for step in steps[1:]] == [4, 4, 8]
    assert [made.outcomes[name].blocks_freed for name in "abc"] == [2, 2, 0]


def test_a_prefill_in_chunks_is_evicted_when_it_is_whole():
    made = scheduler(rule=keeping(4), requests=[(12, 2)], max_num_batched_tokens=5, blocks=4)
    assert [len(step.evictions) for step in run(made)] == [0, 0, 1, 0]


def test_a_request_that_finishes_is_not_evicted_on_the_way():
    assert run(scheduler(rule=BudgetAndBuffer(2, 2), requests=[(9, 1)]))[0].evictions == ()


def test_a_preempted_request_loses_its_drop_and_is_evicted_again():
    made = scheduler(blocks=4, rule=keeping(7), requests=[(8, 6), (8, 6)])
    steps = run(made)
    preempted = next(step for step in steps if step.preempted)
    resumed = next(step for step in steps[preempted.number :] if "b" in step.admitted)
    generated = preempted.number  # one token a step before it
    assert resumed.scheduled["b"] == 8 + generated
    assert [(event.name, event.slots) for event in resumed.evictions] == [("b", 8 + generated)]
    assert made.outcomes["b"].evictions == 2


def test_budget_and_buffer_packs_whenever_the_buffer_is_full():
    made = scheduler(blocks=9, rule=BudgetAndBuffer(budget=8, buffer=4), requests=[(20, 14)])
    steps = run(made)
    assert [(step.number, event.slots) for step in steps for event in step.evictions] == [
        (0, 20),
        (4, 12),
        (8, 12),
        (12, 12),
    ]
    assert made.outcomes["a"].blocks_freed == 3 + 1 + 1 + 1


def test_a_short_prompt_is_left_whole_until_a_buffer_has_come_beyond_the_budget():
    made = scheduler(rule=BudgetAndBuffer(budget=8, buffer=3), requests=[(6, 12)])
    assert [step.number for step in run(made) if step.evictions] == [5, 8]  # 11 and 14 tokens computed
    made = scheduler(rule=BudgetAndBuffer(budget=8), requests=[(8, 12)])
    assert not any(step.evictions for step in run(made))


def test_an_eviction_that_finds_nothing_to_drop_is_no_event_but_starts_the_next_buffer():
    """As of a runtime that frees whole blocks: at the end of prefill it finds none dead, later it does."""
    left = {9: 9, 12: 8}
    rule = BudgetAndBuffer(budget=4, buffer=3, slots_for=lambda progress: left[progress.computed])
    made = scheduler(rule=rule, requests=[(9, 6)])
    steps = run(made)
    assert [step.evictions for step in steps if step.evictions] == [(EvictionEvent("a", 12, 8, 1),)]
    assert steps[3].evictions
    assert (made.outcomes["a"].evictions, made.outcomes["a"].blocks_freed) == (1, 1)


@pytest.mark.parametrize("fields", [(0, 4), (4, 0), (4, 1.5)])
@pytest.mark.parametrize("rule", [RKV, BudgetAndBuffer])
def test_budgets_and_buffers_are_at_least_one(rule, fields):
    with pytest.raises(InputError):
        rule(*fields)


def test_rkv_compacts_as_its_port_does():
    rule = RKV(256, 128)
    at = Progress(
        "a",
        700,
        generated=129,
        computed=828,
        scheduled=1,
        slots=828,
        prefill_ended=False,
        since_eviction=None,
    )
    assert rule.slots_left(at) == 256
    assert rule.slots_left(dataclasses.replace(at, computed=827, slots=827)) is None
    assert rule.slots_left(dataclasses.replace(at, scheduled=2)) is None  # a recomputed prefill
    assert rule.slots_left(dataclasses.replace(at, slots=383)) is None
    assert rule.most_slots(16) == 400


def test_rkv_holds_25_blocks_of_16_and_gives_back_when_next_scheduled():
    made = Scheduler(SchedulerSettings(120, 16), RKV(256, 128))
    made.add(Request("a", 700, 1024))
    steps = run(made)
    held = [120 - step.free_blocks for step in steps]
    compactions = [step.number for step in steps if step.evictions]
    assert compactions == [128 * count for count in range(1, 8)]
    assert held[128] == 52  # 828 tokens: nothing comes back yet
    assert set(held[129:-1]) == {25}
    assert made.outcomes["a"].blocks_freed == 52 - 25


@pytest.mark.parametrize("pool_tokens", [430_000, 282_000])
def test_the_stress_table_of_rkv(pool_tokens):
    """256 requests at once, 700 tokens and 1,024 more: 1,792 compactions, all 256 run at once (true peak)."""
    made = Scheduler(SchedulerSettings(pool_tokens // 16, 16, 1024, 16384), RKV(256, 128))
    for number in range(256):
        made.add(Request(number, 700, 1024))
    steps = list(made.steps())
    made.pool.check_integrity()
    assert sum(len(step.evictions) for step in steps) == 1792
    assert max(step.running for step in steps) == 256
    assert sum(len(step.preempted) for step in steps) == 0
