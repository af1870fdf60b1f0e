"""Compaction in a pool that lives on meanwhile: every request reads its own tokens, whatever was moved."""

import numpy as np
from checked_compaction import COPY, check
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvreclaim import BlockPool
from kvreclaim.compaction import PoolOccupancy, plan_step


class LivingPool(RuleBasedStateMachine):
    """Requests come, write, share, lose tokens and go, with steps of compaction in between.

    What each slot of the pool holds is a number, a token's own; what a request can read through its table
    must be its living tokens, no more and no less, whatever was moved.
    """

    SIZE, BLOCKS = 4, 24

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.BLOCKS, self.SIZE)
        self.contents = np.zeros((self.BLOCKS, self.SIZE), int)
        self.live: dict[int, np.ndarray] = {}
        self.tokens: dict[int, set[int]] = {}
        self.written = 0

    def _write(self, request: int, start: int) -> None:
        table = self.pool.block_table(request)
        for slot in range(start, self.pool.length(request)):
            self.written += 1
            self.contents[table[slot // self.SIZE], slot % self.SIZE] = self.written
            self.tokens[request].add(self.written)
        grown = self.pool.length(request) - len(self.live[request])
        self.live[request] = np.append(self.live[request], np.ones(grown, bool))

    @rule(tokens=st.integers(1, 20))
    def arrives(self, tokens: int) -> None:
        request = len(self.tokens)
        if self.pool.allocate(request, tokens) is not None:
            self.live[request], self.tokens[request] = np.zeros(0, bool), set()
            self._write(request, 0)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.integers(1, 6))
    def writes(self, data: st.DataObject, tokens: int) -> None:
        request = data.draw(st.sampled_from(sorted(self.live)))
        start = self.pool.length(request)
        taken = self.pool.append(request, tokens)
        if taken is not None:
            if taken.copied is not None:
                self.contents[taken.copied[1]] = self.contents[taken.copied[0]]
            self._write(request, start)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def is_shared(self, data: st.DataObject) -> None:
        parent, child = data.draw(st.sampled_from(sorted(self.live))), len(self.tokens)
        self.pool.fork(parent, child)
        self.live[child], self.tokens[child] = self.live[parent].copy(), set(self.tokens[parent])

    @precondition(lambda self: self.live)
    @rule(data=st.data(), share=st.floats(0.1, 1.0), seed=st.integers(0, 2**32))
    def loses_tokens(self, data: st.DataObject, share: float, seed: int) -> None:
        request = data.draw(st.sampled_from(sorted(self.live)))
        keep = self.live[request]
        dies = keep & (np.random.default_rng(seed).random(len(keep)) < share)
        self.tokens[request] -= set(self._slots(request)[dies].tolist())
        self._free_dead(request, keep & ~dies)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.live)))
        self.pool.free(request)
        del self.live[request]
        self.tokens[request] = set()

    @precondition(lambda self: self.live)
    @rule(copies=st.integers(1, 9), seconds=st.floats(6.6, 30))
    def is_compacted_a_little(self, copies: int, seconds: float) -> None:
        tables = {request: self.pool.block_table(request) for request in self.live}
        shared = [self.pool.owners(block) > 1 for block in range(self.BLOCKS)]
        occupancy = PoolOccupancy.of_tables(tables, self.live, shared, self.SIZE)
        step = plan_step(occupancy, COPY, copy_budget=copies, latency_budget=seconds)
        after = check(occupancy, step, COPY)
        assert step.moved_tokens <= copies
        assert step.seconds <= seconds + 1e-9
        numbers = np.array([block for table in tables.values() for block in table], int)
        before = self.contents.copy()
        for (entry, slot), (to, into) in zip(step.source, step.destination, strict=True):
            self.contents[numbers[to], into] = self.contents[numbers[entry], slot]
        untouched = [block for block in range(self.BLOCKS) if shared[block]]
        assert np.array_equal(self.contents[untouched], before[untouched])
        free, start = self.pool.free_blocks, 0
        for request, table in tables.items():
            keep = after[start : start + len(table)].reshape(-1)[: len(self.live[request])]
            start += len(table)
            self._free_dead(request, keep)
        assert self.pool.free_blocks - free >= len(step.freed)

    def _slots(self, request: int) -> np.ndarray:
        table = list(self.pool.block_table(request))
        return self.contents[table].reshape(-1)[: self.pool.length(request)]

    def _free_dead(self, request: int, keep: np.ndarray) -> None:
        blocks = np.arange(len(keep)) // self.SIZE
        stays = np.isin(blocks, blocks[keep])
        self.pool.evict(request, keep)
        self.live[request] = keep[stays]

    @invariant()
    def every_request_reads_its_own_tokens(self) -> None:
        for request, live in self.live.items():
            read = self._slots(request)[live]
            assert len(read) == len(set(read.tolist()))
            assert set(read.tolist()) == self.tokens[request]

    @invariant()
    def the_pool_conserves_its_blocks(self) -> None:
        self.pool.check_integrity()


TestLivingPool = LivingPool.TestCase
TestLivingPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
