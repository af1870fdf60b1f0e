"""`BlockPool` against vLLM's own `KVCacheManager`: equal free counts after every operation."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from strategies import keeps
from vllm_parts import manager, request

from kvreclaim.pool import BlockPool

NAMES = st.sampled_from("abcdef")


class PoolMachine(RuleBasedStateMachine):
    """Requests of one pool in both allocators; `computed` is what vLLM believes a request has computed."""

    @initialize(blocks=st.integers(1, 12), block_size=st.integers(1, 5))
    def start(self, blocks, block_size):
        self.pool = BlockPool(blocks, block_size)
        self.vllm, self.dropped = manager(blocks, block_size)
        self.block_size = block_size
        self.requests = {}

    @rule(name=NAMES, tokens=st.integers(1, 25))
    def allocate(self, name, tokens):
        if name in self.requests:
            return
        new = request(name, tokens)
        given = self.vllm.allocate_slots(new, tokens)
        allocation = self.pool.allocate(name, tokens)
        assert (allocation is None) == (given is None)
        if given is not None:
            new.num_computed_tokens = tokens
            self.requests[name] = new

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), tokens=st.integers(1, 12))
    def append(self, data, tokens):
        name = data.draw(st.sampled_from(sorted(self.requests)))
        known = self.requests[name]
        given = self.vllm.allocate_slots(known, tokens)
        growth = self.pool.append(name, tokens)
        assert (growth is None) == (given is None)
        if given is not None:
            assert len(growth.blocks) == len(given.blocks[0])
            known.num_computed_tokens += tokens

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def evict(self, data):
        """Free the whole dead blocks of a mask, as a runtime that copies nothing."""
        name = data.draw(st.sampled_from(sorted(self.requests)))
        length = self.pool.length(name)
        keep = np.array(data.draw(keeps(length)), dtype=bool)
        parts = [keep[start : start + self.block_size] for start in range(0, length, self.block_size)]
        dead = [place for place, part in enumerate(parts) if not part.any()]
        self.pool.evict(name, keep)
        self.dropped.drop(name, dead, sum(len(parts[place]) for place in dead))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), share=st.floats(0, 1))
    def pack(self, data, share):
        """Leave the first slots, which survivors were packed into."""
        name = data.draw(st.sampled_from(sorted(self.requests)))
        length = self.pool.length(name)
        left = int(share * length)
        first = -(-left // self.block_size)
        self.pool.truncate(name, left)
        self.dropped.drop(name, list(range(first, len(self.dropped.held(name)))), length - left)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def preempt(self, data):
        """Take everything; the request comes back as a new one, at its full length."""
        name = data.draw(st.sampled_from(sorted(self.requests)))
        known = self.requests[name]
        tokens = known.num_computed_tokens
        self.vllm.free(known)
        self.pool.free(name)
        known.num_computed_tokens = 0
        given = self.vllm.allocate_slots(known, tokens)
        assert (self.pool.allocate(name, tokens) is None) == (given is None)
        if given is None:
            del self.requests[name]
        else:
            known.num_computed_tokens = tokens

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def free(self, data):
        name = data.draw(st.sampled_from(sorted(self.requests)))
        self.vllm.free(self.requests.pop(name))
        self.pool.free(name)

    @invariant()
    def both_hold_the_same(self):
        self.pool.check_integrity()
        assert self.pool.free_blocks == self.vllm.block_pool.get_num_free_blocks()
        for name in self.requests:
            assert len(self.pool.block_table(name)) == len(self.dropped.held(name))

    def teardown(self):
        if hasattr(self, "pool"):
            for known in self.requests.values():
                self.vllm.free(known)
            assert self.vllm.block_pool.get_num_free_blocks() == self.pool.blocks
            assert self.dropped.tokens == {}


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_the_null_block_is_never_free():
    made, _ = manager(64, 16)
    assert made.block_pool.num_gpu_blocks == 65
    assert made.block_pool.get_num_free_blocks() == 64
