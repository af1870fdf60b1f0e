"""The scheduler with shared prefixes, over dictionaries: vLLM's rules as the tests read them."""

from collections import OrderedDict

from kvreclaim.scheduler import Scheduler


class PrefixPool:
    """Blocks with owners and hashes; free ones in the order in which they are taken."""

    def __init__(self, blocks, block_size):
        self.blocks, self.block_size = blocks, block_size
        self.queue = OrderedDict.fromkeys(range(blocks))
        self.owners = [0] * blocks
        self.hash_of, self.holder = {}, {}
        self.tables, self.lengths, self.hashes = {}, {}, {}

    @property
    def free_blocks(self):
        return len(self.queue)

    def length(self, name):
        return self.lengths[name]

    def needed(self, slots):
        return -(-slots // self.block_size)

    def hits(self, name, most):
        found = []
        for key in self.hashes[name][:most]:
            if key not in self.holder:
                break
            found.append(self.holder[key])
        return found

    def open(self, name, hits, slots):
        for block in hits:
            self.queue.pop(block, None)
            self.owners[block] += 1
        self.tables[name], self.lengths[name] = list(hits), len(hits) * self.block_size
        self.append(name, slots - self.lengths[name])

    def append(self, name, slots):
        table = self.tables[name]
        more = self.needed(self.lengths[name] + slots) - len(table)
        if more > len(self.queue):
            return None
        for _ in range(more):
            block, _ = self.queue.popitem(last=False)
            if block in self.hash_of:
                del self.holder[self.hash_of.pop(block)]
            self.owners[block] = 1
            table.append(block)
        self.lengths[name] += slots
        return ()

    def remember(self, name, filled):
        for block, key in zip(
            self.tables[name][: filled // self.block_size], self.hashes[name], strict=False
        ):
            if key not in self.holder:
                self.holder[key], self.hash_of[block] = block, key

    def release(self, blocks):
        freed = []
        for block in reversed(blocks):
            self.owners[block] -= 1
            if self.owners[block] == 0:
                self.queue[block] = None
                freed.append(block)
        return freed

    def truncate(self, name, slots):
        table = self.tables[name]
        leaving = table[self.needed(slots) :]
        del table[self.needed(slots) :]
        self.lengths[name] = slots
        return self.release(leaving)

    def free(self, name):
        del self.lengths[name]
        return self.release(self.tables.pop(name))

    def check_integrity(self):
        for block in range(self.blocks):
            held = sum(table.count(block) for table in self.tables.values())
            assert held == self.owners[block]
            assert (held == 0) == (block in self.queue)


class SharedScheduler(Scheduler):
    """`Scheduler`, its admission looking for a request's leading blocks in the pool first."""

    def __init__(self, settings, hashes, rule=None):
        super().__init__(settings, rule)
        self.pool = PrefixPool(settings.blocks, settings.block_size)
        self.pool.hashes = hashes
        self.hit_tokens = 0

    def _reserve(self, live, tokens):
        given = super()._reserve(live, tokens)
        if given and live.prefilling:
            self.pool.remember(live.name, live.computed + tokens)
        return given

    def _admit(self, scheduled):
        admitted, size = [], self.settings.block_size
        budget = self.settings.max_num_batched_tokens - sum(scheduled.values())
        while budget and self._waiting and len(self._running) < self.settings.max_num_seqs:
            live = self._waiting[0]
            most = min(live.request.prompt // size, (live.pending - 1) // size)
            hits = self.pool.hits(live.name, most)
            found = len(hits) * size
            tokens = min(live.pending - found, budget)
            if tokens < live.pending - found and not self.settings.chunked_prefill:
                break
            whole = live.pending if self.settings.reserve_full_input else found + tokens
            new = self.pool.needed(whole) - sum(block not in self.pool.queue for block in hits)
            left_free = self.settings.watermark_blocks if self._running else 0
            if new + left_free > self.pool.free_blocks:
                break
            self.pool.open(live.name, hits, found + tokens)
            self.hit_tokens += found
            live.computed = found
            self.pool.remember(live.name, found + tokens)
            self._running.append(self._waiting.popleft())
            if live.scheduled is None:
                live.scheduled = self._step
            admitted.append(live)
            scheduled[live] = tokens
            budget -= tokens
        return admitted

    def _evict(self, live, scheduled):
        """Nothing that others hold too is evicted, and what is left is found no more."""
        if self._rule is None or live.finish is not None:
            live.prefilling = False  # what decodes lets no block of its prompt be found anew
            return None
        table = self.pool.tables[live.name]
        stays = next((place for place, block in enumerate(table) if self.pool.owners[block] == 1), len(table))
        rule, self._rule = self._rule, _AtLeast(self._rule, stays * self.settings.block_size)
        before = list(table)
        event = super()._evict(live, scheduled)
        self._rule = rule
        if event is not None and event.slots_left < event.slots:
            for block in before[stays:]:
                if block in self.pool.hash_of:
                    del self.pool.holder[self.pool.hash_of.pop(block)]
        return event


class _AtLeast:
    """A rule that leaves at least so many slots."""

    def __init__(self, rule, slots):
        self.rule, self.slots = rule, slots

    def slots_left(self, progress):
        left = self.rule.slots_left(progress)
        return None if left is None else max(left, min(self.slots, progress.slots))
