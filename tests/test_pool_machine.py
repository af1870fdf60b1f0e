"""The pool against a model that keeps every slot of every block in plain lists and counts nothing."""

import copy

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from strategies import keeps

from kvreclaim.errors import InputError
from kvreclaim.pool import BlockPool

NAMES = st.sampled_from("abcdef")


class PlainPool:
    """Rows of (block, filled slots); who owns a block is found by looking through every row."""

    def __init__(self, blocks, block_size):
        self.block_size = block_size
        self.free = list(range(blocks))
        self.rows = {}

    def owners(self, block):
        return sum(block == held for row in self.rows.values() for held, _ in row)

    def length(self, name):
        return sum(filled for _, filled in self.rows[name])

    def write(self, name):
        """Fill one slot; False when no block is left for it."""
        row = self.rows.setdefault(name, [])
        if row and row[-1][1] < self.block_size:
            block, filled = row[-1]
            if self.owners(block) > 1:
                if not self.free:
                    return False
                block = self.free.pop(0)
            row[-1] = (block, filled + 1)
            return True
        if not self.free:
            return False
        row.append((self.free.pop(0), 1))
        return True

    def write_all(self, name, tokens):
        """Fill so many slots, or leave everything as it was and return False."""
        before = copy.deepcopy((self.free, self.rows))
        if all(self.write(name) for _ in range(tokens)):
            return True
        self.free, self.rows = before
        return False

    def drop(self, name, positions):
        for position in sorted(positions, reverse=True):
            block, _ = self.rows[name].pop(position)
            if self.owners(block) == 0:
                self.free.append(block)

    def truncate(self, name, slots):
        """Empty slots from the end, one by one, until so many are left."""
        row = self.rows[name]
        while self.length(name) > slots:
            block, filled = row.pop()
            if filled > 1:
                row.append((block, filled - 1))
            elif self.owners(block) == 0:
                self.free.append(block)

    def dead_blocks(self, name, keep):
        slots = iter(keep)
        liveness = [[next(slots) for _ in range(filled)] for _, filled in self.rows[name]]
        return [position for position, block in enumerate(liveness) if not any(block)]


class PoolMachine(RuleBasedStateMachine):
    @initialize(blocks=st.integers(1, 12), block_size=st.integers(1, 5))
    def start(self, blocks, block_size):
        self.pool = BlockPool(blocks, block_size)
        self.model = PlainPool(blocks, block_size)

    @rule(name=NAMES, tokens=st.integers(1, 25))
    def allocate(self, name, tokens):
        if name in self.model.rows:
            with pytest.raises(InputError):
                self.pool.allocate(name, tokens)
            return
        fits = self.pool.can_allocate(tokens)
        allocation = self.pool.allocate(name, tokens)
        assert (allocation is not None) == fits == self.model.write_all(name, tokens)
        if allocation:
            assert allocation.blocks == self.pool.block_table(name)
            assert allocation.copied is None

    @rule(name=NAMES, tokens=st.integers(1, 12))
    def append(self, name, tokens):
        if name not in self.model.rows:
            with pytest.raises(InputError):
                self.pool.append(name, tokens)
            return
        before = self.pool.block_table(name)
        growth = self.pool.append(name, tokens)
        assert (growth is not None) == self.model.write_all(name, tokens)
        if growth:
            after = self.pool.block_table(name)
            assert set(growth.blocks) == set(after) - set(before)
            gone = set(before) - set(after)
            assert gone == (set() if growth.copied is None else {growth.copied[0]})

    @rule(parent=NAMES, child=NAMES)
    def fork(self, parent, child):
        if parent not in self.model.rows or child in self.model.rows:
            with pytest.raises(InputError):
                self.pool.fork(parent, child)
            return
        self.pool.fork(parent, child)
        self.model.rows[child] = list(self.model.rows[parent])

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def evict(self, data):
        name = data.draw(st.sampled_from(sorted(self.model.rows)))
        keep = data.draw(keeps(self.model.length(name)))
        dead = self.model.dead_blocks(name, keep)
        leaving = [self.model.rows[name][position] for position in dead]
        shared = tuple(block for block, _ in leaving if self.model.owners(block) > 1)
        eviction = self.pool.evict(name, np.array(keep, dtype=bool))
        self.model.drop(name, dead)
        assert eviction.still_shared == shared
        assert eviction.freed == tuple(block for block, _ in leaving if block not in shared)
        assert eviction.dead_slots == keep.count(False) - sum(filled for _, filled in leaving)

    @rule(name=NAMES, share=st.floats(0, 1))
    def truncate(self, name, share):
        if name not in self.model.rows:
            with pytest.raises(InputError):
                self.pool.truncate(name, 0)
            return
        slots = int(share * self.model.length(name))
        free_before = len(self.model.free)
        self.model.truncate(name, slots)
        assert self.pool.truncate(name, slots) == tuple(self.model.free[free_before:])
        with pytest.raises(InputError):
            self.pool.truncate(name, slots + 1)

    @rule(name=NAMES)
    def free(self, name):
        if name not in self.model.rows:
            with pytest.raises(InputError):
                self.pool.free(name)
            return
        free_before = len(self.model.free)
        self.model.drop(name, range(len(self.model.rows[name])))
        del self.model.rows[name]
        assert self.pool.free(name) == tuple(self.model.free[free_before:])

    @rule(sizes=st.dictionaries(NAMES, st.integers(1, 12), max_size=4))
    def admit(self, sizes):
        if self.model.rows.keys() & sizes:
            with pytest.raises(InputError):
                self.pool.admit(sizes)
            return
        admitted = 0
        for name, tokens in sizes.items():
            if not self.model.write_all(name, tokens):
                break
            admitted += 1
        assert self.pool.admit(sizes) == admitted

    @invariant()
    def agrees_with_the_model(self):
        pool, model = self.pool, self.model
        pool.check_integrity()
        assert pool.free_blocks == len(model.free)
        assert pool.used_blocks == pool.blocks - len(model.free)
        assert pool.requests == tuple(model.rows)
        for name, row in model.rows.items():
            assert pool.block_table(name) == tuple(block for block, _ in row)
            assert pool.length(name) == model.length(name)
        for block in range(pool.blocks):
            assert pool.owners(block) == model.owners(block)

    def teardown(self):
        if hasattr(self, "pool"):
            for request in self.pool.requests:
                self.pool.free(request)
            assert self.pool.free_blocks == self.pool.blocks
            self.pool.check_integrity()


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
