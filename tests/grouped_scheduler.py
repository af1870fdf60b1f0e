"""The scheduler with groups of layers, over lists: each group has a table, all take from one pool."""

from kvreclaim.scheduler import Scheduler


class GroupedPool:
    """Blocks by group and request; the tables of groups with a window are dictionaries by place."""

    def __init__(self, blocks, block_size, windows):
        self.blocks, self.block_size, self.windows = blocks, block_size, windows
        self.free_blocks = blocks
        self.full = windows.count(None)
        self.lengths, self.behind = {}, {}

    def needed(self, slots):
        return -(-slots // self.block_size)

    def length(self, name):
        return self.lengths[name]

    def seen(self, window, computed, tokens):
        """Places of the blocks with a token that these tokens or later ones see, or that they are."""
        first = max(0, computed - window + 1)
        return {token // self.block_size for token in range(first, computed + tokens)}

    def fits(self, name, slots, computed, tokens):
        """Give a request these slots and the windows of these tokens, if there are blocks for all of them."""
        held = self.behind.get(name, {})
        behind = {
            group: self.seen(window, computed, tokens)
            for group, window in enumerate(self.windows)
            if window is not None
        }
        more = sum(map(len, behind.values())) - sum(map(len, held.values()))
        more += self.full * (self.needed(slots) - self.needed(self.lengths.get(name, 0)))
        if more > self.free_blocks:
            return False
        self.free_blocks -= more
        self.lengths[name], self.behind[name] = slots, behind
        return True

    def truncate(self, name, slots):
        freed = self.full * (self.needed(self.lengths[name]) - self.needed(slots))
        self.lengths[name] = slots
        self.free_blocks += freed
        return range(freed)

    def free(self, name):
        self.truncate(name, 0)
        self.free_blocks += sum(map(len, self.behind.pop(name).values()))
        del self.lengths[name]

    def most(self, tokens, budget):
        """The most blocks that so many tokens may need at once, computed so many at a time."""
        total = 0
        for window in self.windows:
            blocks = self.needed(tokens)
            total += blocks if window is None else min(blocks, self.needed(window - 1 + budget) + 1)
        return total

    def check_integrity(self):
        held = sum(self.full * self.needed(length) for length in self.lengths.values())
        held += sum(len(places) for groups in self.behind.values() for places in groups.values())
        assert held + self.free_blocks == self.blocks
        assert self.free_blocks >= 0


class GroupedScheduler(Scheduler):
    """`Scheduler` over a `GroupedPool`; what a rule leaves is said of the groups that see all tokens."""

    def __init__(self, settings, windows, rule=None):
        super().__init__(settings, rule)
        self.pool = GroupedPool(settings.blocks, settings.block_size, windows)

    def _reserve(self, live, tokens):
        slots = live.slots + tokens
        if live.dropped and self._most_slots is not None:
            slots = min(live.computed + tokens, self._most_slots)
        if slots < self.pool.length(live.name):
            live.blocks_freed += len(self.pool.truncate(live.name, slots))
        return self.pool.fits(live.name, slots, live.computed, tokens)

    def _admit(self, scheduled):
        admitted, limit = [], self.settings.max_num_batched_tokens
        budget = limit - sum(scheduled.values())
        while budget and self._waiting and len(self._running) < self.settings.max_num_seqs:
            live = self._waiting[0]
            tokens = min(live.pending, budget)
            whole = live.pending if self.settings.reserve_full_input else tokens
            left_free = self.settings.watermark_blocks if self._running else 0
            if self.pool.most(whole, limit) + left_free > self.pool.free_blocks:
                break
            if tokens < live.pending and not self.settings.chunked_prefill:
                break
            assert self.pool.fits(live.name, tokens, 0, tokens)
            self._running.append(self._waiting.popleft())
            if live.scheduled is None:
                live.scheduled = self._step
            admitted.append(live)
            scheduled[live] = tokens
            budget -= tokens
        return admitted
