"""`Scheduler` against vLLM's own, fed by a worker that answers without a model: step by step the same.

The same requests arrive at the same steps, with the same limits; whenever our rule evicts, as many slots and
blocks are taken from vLLM's request.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm_parts import MAX_MODEL_LEN, Dropped, fake_worker, model_config, request
from vllm_parts import scheduler as vllm_scheduler

from kvreclaim.eviction_rules import AtPrefillEnd, BudgetAndBuffer
from kvreclaim.scheduler import Scheduler
from kvreclaim.scheduling import Request, SchedulerSettings

STEPS = 3000


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return model_config(tmp_path_factory.mktemp("model"))


class Side:
    """vLLM's scheduler, its pool, and what was dropped of its requests."""

    def __init__(self, model, limits):
        self.scheduler = vllm_scheduler(model, limits)
        self.manager = self.scheduler.kv_cache_manager
        self.dropped = Dropped(self.manager)
        self.requests = {}

    def add(self, name, prompt, output):
        self.requests[name] = request(name, prompt, output)
        self.scheduler.add_request(self.requests[name])

    def step(self):
        """Schedule and run a step; return its tokens by request, the queues' lengths while it ran."""
        scheduled = self.scheduler.schedule()
        queues = self.scheduler.get_request_counts()
        self.scheduler.update_from_output(scheduled, fake_worker(scheduled, self.requests))
        return dict(scheduled.num_scheduled_tokens), queues

    def evict(self, event):
        """Do what an eviction of ours did: leave so many slots in the first blocks."""
        held = self.dropped.held(event.name)
        first = -(-event.slots_left // self.dropped.blocks.block_size)
        self.dropped.drop(event.name, list(range(first, len(held))), event.slots - event.slots_left)

    @property
    def free_blocks(self):
        return self.manager.block_pool.get_num_free_blocks()


def compare(model, limits, rule, sizes):
    """Run both to the end, a step of each in turn; return our steps."""
    ours, theirs = Scheduler(limits, rule), Side(model, limits)
    arriving = sorted(enumerate(sizes), key=lambda pair: pair[1][2])
    steps = []
    for number in range(STEPS):
        while arriving and arriving[0][1][2] <= number:
            name, (prompt, output, _) = arriving.pop(0)
            ours.add(Request(str(name), prompt, output))
            theirs.add(str(name), prompt, output)
        step = ours.step()
        ours.pool.check_integrity()
        tokens, queues = theirs.step()
        for event in step.evictions:
            theirs.evict(event)
        assert step.scheduled == tokens
        assert (step.running, step.waiting) == queues
        assert (step.running_after, step.waiting_after) == theirs.scheduler.get_request_counts()
        assert ours.running == tuple(one.request_id for one in theirs.scheduler.running)
        assert step.free_blocks == theirs.free_blocks
        steps.append(step)
        if not arriving and not ours.running and not ours.waiting:
            break
    assert not theirs.scheduler.has_unfinished_requests()
    assert theirs.free_blocks == limits.blocks
    preemptions = {name: one.num_preemptions for name, one in theirs.requests.items()}
    assert preemptions == {name: outcome.preemptions for name, outcome in ours.outcomes.items()}
    return steps


@st.composite
def cases(draw):
    """Settings, a rule, and requests (prompt, output, step of arrival) that the pool can hold alone."""
    blocks, block_size = draw(st.integers(3, 14)), draw(st.sampled_from([1, 2, 4, 8]))
    most = blocks * block_size
    max_num_seqs = draw(st.integers(1, 6))
    chunked_prefill = draw(st.booleans())
    limits = SchedulerSettings(
        blocks,
        block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=draw(st.integers(max_num_seqs, 30)) if chunked_prefill else MAX_MODEL_LEN,
        reserve_full_input=draw(st.booleans()),
        chunked_prefill=chunked_prefill,
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1, 0.3])),
    )
    small = st.integers(1, 9)
    share = draw(st.floats(0, 1))
    rule = draw(
        st.sampled_from(
            [
                None,
                AtPrefillEnd(lambda progress: max(1, int(share * progress.slots))),
                BudgetAndBuffer(draw(small), draw(small)),
            ]
        )
    )
    sizes = st.tuples(st.integers(1, most), st.integers(1, most), st.integers(0, 20)).filter(
        lambda size: size[0] + size[1] - 1 <= most
    )
    return limits, rule, draw(st.lists(sizes, min_size=1, max_size=8))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(case=cases())
def test_random_requests_are_scheduled_alike(model, case):
    compare(model, *case)


def test_the_scenario_of_a_small_pool(model):
    """40 blocks of 32, 8 requests of 520 tokens and 64 more: 2 run at once, 5 when each keeps 128 tokens."""
    limits = SchedulerSettings(40, 32, max_num_seqs=16, max_num_batched_tokens=1024)
    sizes = [(520, 64, 0)] * 8
    whole = compare(model, limits, None, sizes)
    packed = compare(model, limits, AtPrefillEnd(lambda progress: min(128, progress.slots)), sizes)
    assert max(step.running for step in whole) == 2
    assert max(step.running for step in packed) >= 5
    assert sum(event.blocks_freed for step in packed for event in step.evictions) == 8 * 13


def test_preemptions_under_eviction_are_alike(model):
    limits = SchedulerSettings(20, 4, max_num_seqs=8, max_num_batched_tokens=32)
    steps = compare(model, limits, BudgetAndBuffer(30, 8), [(24, 40, number) for number in range(8)])
    assert sum(len(step.preempted) for step in steps) > 0
    assert sum(len(step.evictions) for step in steps) > 8
