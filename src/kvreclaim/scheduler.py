"""vLLM V1's admission rules in plain Python: who runs, who waits, who is preempted, step by step.

    step:  1  running, in order   tokens and blocks for each; where blocks lack, the tail is preempted
           2  waiting, in order   admitted while budget, places and blocks last; not after a preemption
           3  the model runs      a request whose tokens are all computed gets one more
           4  finished            their blocks go back
           5  evictions           a request gives back blocks: its slots shrink, its tokens do not

Read off vLLM 0.32 (``vllm/v1/core/sched/scheduler.py``, ``vllm/v1/core/kv_cache_manager.py``), without
speculative decoding, priorities, prefix caching and asynchronous scheduling. Written to be read: the fast
simulator is held to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from kvreclaim.errors import InputError
from kvreclaim.eviction_rules import EvictionRule, Progress
from kvreclaim.pool import BlockPool
from kvreclaim.scheduling import EvictionEvent, Outcome, Request, SchedulerSettings, Step


@dataclass(eq=False)
class _Live:
    """A request on its way: what it has computed since it was last admitted, and its outcome so far."""

    request: Request
    queued: int
    generated: int = 0
    computed: int = 0
    dropped: int = 0
    evicted_at: int | None = None
    prefilling: bool = True
    scheduled: int | None = None
    first_token: int | None = None
    finish: int | None = None
    preemptions: int = 0
    evictions: int = 0
    blocks_freed: int = 0

    @property
    def name(self) -> Hashable:
        return self.request.name

    @property
    def pending(self) -> int:
        """Tokens, of the prompt and generated, that are still to be computed."""
        return self.request.prompt + self.generated - self.computed

    def decoding(self, tokens: int) -> bool:
        """Whether computing so many tokens now is a decode step."""
        return tokens == 1 and self.computed >= self.request.prompt

    @property
    def slots(self) -> int:
        """Slots filled by what was computed and not dropped."""
        return self.computed - self.dropped


class Scheduler:
    """Requests, a pool of blocks, and the rules that bring them together.

    Parameters
    ----------
    settings
        The pool and the limits.
    rule
        When requests lose KV pairs; None: never.
    """

    def __init__(self, settings: SchedulerSettings, rule: EvictionRule | None = None) -> None:
        self.settings = settings
        self.pool = BlockPool(settings.blocks, settings.block_size)
        self._rule = rule
        self._most_slots = None if rule is None else rule.most_slots(settings.block_size)
        self._requests: dict[Hashable, _Live] = {}
        self._waiting: deque[_Live] = deque()
        self._running: list[_Live] = []
        self._step = 0

    @property
    def running(self) -> tuple[Hashable, ...]:
        """Names of the requests that run, first admitted first."""
        return _names(self._running)

    @property
    def waiting(self) -> tuple[Hashable, ...]:
        """Names of the requests that wait, next first."""
        return _names(self._waiting)

    @property
    def outcomes(self) -> dict[Hashable, Outcome]:
        """What became of each request so far, in the order in which they were added."""
        return {name: _outcome(live) for name, live in self._requests.items()}

    def add(self, request: Request) -> None:
        """Put a request at the end of the waiting queue.

        Raises
        ------
        InputError
            If its name is taken, or if it could not finish even alone: vLLM refuses what is longer than its
            ``max_model_len``, and a ``max_model_len`` that the pool can't hold. Also under a rule that would
            keep it small: once preempted, all its tokens are computed again before anything is evicted.
        """
        if request.name in self._requests:
            raise InputError(f"request {request.name!r} is there already: pass another name")
        tokens = request.prompt + request.output - 1  # the last one is never computed
        needed = self.settings.blocks_for(tokens)
        if needed > self.settings.blocks:
            raise InputError(
                f"request {request.name!r} needs {needed} blocks for {tokens} tokens, the pool has "
                f"{self.settings.blocks}: pass a larger pool or a shorter request"
            )
        if not self.settings.chunked_prefill and tokens > self.settings.max_num_batched_tokens:
            raise InputError(
                f"request {request.name!r} may have to compute {tokens} tokens in one step, the budget is "
                f"{self.settings.max_num_batched_tokens}: pass a larger one, or chunked_prefill=True"
            )
        live = _Live(request, queued=self._step)
        self._requests[request.name] = live
        self._waiting.append(live)

    def abort(self, name: Hashable) -> None:
        """Forget a request that runs or waits, and take its blocks back; `InputError` if it does neither."""
        live = self._requests.get(name)
        if live is None or live.finish is not None:
            raise InputError(f"request {name!r} neither runs nor waits: pass one that does")
        if live in self._running:
            self._running.remove(live)
            self.pool.free(name)
        else:
            self._waiting.remove(live)
        del self._requests[name]

    def steps(self) -> Iterator[Step]:
        """Go on, step by step, until every request is finished."""
        while self._running or self._waiting:
            yield self.step()

    def step(self) -> Step:
        """Schedule, run and finish one step; nothing is scheduled where there is nothing to do."""
        scheduled: dict[_Live, int] = {}
        preempted = self._schedule_running(scheduled)
        admitted = [] if preempted else self._admit(scheduled)
        running, waiting = len(self._running), len(self._waiting)
        decodes = sum(live.decoding(tokens) for live, tokens in scheduled.items())
        sampled = self._compute(scheduled)
        attended = sum(live.slots for live in scheduled)
        finished = self._finish(sampled)
        evictions = [event for live in sampled if (event := self._evict(live, scheduled[live]))]
        number, self._step = self._step, self._step + 1
        return Step(
            number=number,
            scheduled={live.name: tokens for live, tokens in scheduled.items()},
            decodes=decodes,
            prefill_tokens=sum(scheduled.values()) - decodes,
            kv_tokens=attended,
            admitted=_names(admitted),
            preempted=_names(preempted),
            finished=_names(finished),
            evictions=tuple(evictions),
            running=running,
            waiting=waiting,
            running_after=len(self._running),
            waiting_after=len(self._waiting),
            free_blocks=self.pool.free_blocks,
        )

    def _schedule_running(self, scheduled: dict[_Live, int]) -> list[_Live]:
        """Give each running request its tokens and blocks; return whom that preempted.

        Preempted requests go to the head of the waiting queue, to be computed again from their first token.
        """
        preempted: list[_Live] = []
        budget = self.settings.max_num_batched_tokens
        place = 0
        while place < len(self._running) and budget:
            live = self._running[place]
            tokens = min(live.pending, budget)
            while not self._reserve(live, tokens):
                preempted.append(self._preempt_tail())
                if preempted[-1] is live:
                    return preempted
            scheduled[live] = tokens
            budget -= tokens
            place += 1
        return preempted

    def _reserve(self, live: _Live, tokens: int) -> bool:
        """Give a running request slots for so many further tokens; return whether the blocks are there."""
        held = self.pool.length(live.name)
        slots = live.slots + tokens
        if live.dropped and self._most_slots is not None:
            slots = min(live.computed + tokens, self._most_slots)
        if slots < held:
            live.blocks_freed += len(self.pool.truncate(live.name, slots))
        return slots <= held or self.pool.append(live.name, slots - held) is not None

    def _preempt_tail(self) -> _Live:
        live = self._running.pop()
        self.pool.free(live.name)
        live.computed = live.dropped = 0
        live.evicted_at, live.prefilling = None, True
        live.preemptions += 1
        self._waiting.appendleft(live)
        return live

    def _admit(self, scheduled: dict[_Live, int]) -> list[_Live]:
        """Start requests from the head of the waiting queue, none behind the first that has to wait."""
        admitted: list[_Live] = []
        budget = self.settings.max_num_batched_tokens - sum(scheduled.values())
        while budget and self._waiting and len(self._running) < self.settings.max_num_seqs:
            live = self._waiting[0]
            tokens = min(live.pending, budget)
            whole = live.pending if self.settings.reserve_full_input else tokens
            left_free = self.settings.watermark_blocks if self._running else 0
            if self.settings.blocks_for(whole) + left_free > self.pool.free_blocks:
                break
            if tokens < live.pending and not self.settings.chunked_prefill:
                break
            self.pool.allocate(live.name, tokens)
            self._running.append(self._waiting.popleft())
            if live.scheduled is None:
                live.scheduled = self._step
            admitted.append(live)
            scheduled[live] = tokens
            budget -= tokens
        return admitted

    def _compute(self, scheduled: dict[_Live, int]) -> list[_Live]:
        """Run the model; return the requests that got a token, those with nothing left to compute."""
        for live, tokens in scheduled.items():
            live.computed += tokens
        sampled = [live for live in scheduled if live.pending == 0]
        for live in sampled:
            live.generated += 1
            if live.first_token is None:
                live.first_token = self._step
        return sampled

    def _finish(self, sampled: Iterable[_Live]) -> list[_Live]:
        """End the requests that have all their tokens; their blocks go back."""
        finished = [live for live in sampled if live.generated == live.request.output]
        for live in finished:
            live.finish = self._step
            self._running.remove(live)
            self.pool.free(live.name)
        return finished

    def _evict(self, live: _Live, scheduled: int) -> EvictionEvent | None:
        """Ask the rule about a request that got a token and goes on; take back the blocks that go at once."""
        if self._rule is None or live.finish is not None:
            return None
        progress = Progress(
            name=live.name,
            prompt=live.request.prompt,
            generated=live.generated,
            computed=live.computed,
            scheduled=scheduled,
            slots=live.slots,
            prefill_ended=live.prefilling,
            since_eviction=None if live.evicted_at is None else live.computed - live.evicted_at,
        )
        live.prefilling = False
        wanted = self._rule.slots_left(progress)
        if wanted is None:
            return None
        live.evicted_at = live.computed
        if wanted >= progress.slots:
            return None
        freed = len(self.pool.truncate(live.name, wanted)) if self._most_slots is None else 0
        live.dropped = live.computed - wanted
        live.evictions += 1
        live.blocks_freed += freed
        return EvictionEvent(live.name, progress.slots, wanted, freed)


def _names(requests: Iterable[_Live]) -> tuple[Hashable, ...]:
    return tuple(live.name for live in requests)


def _outcome(live: _Live) -> Outcome:
    return Outcome(
        name=live.name,
        queued=live.queued,
        scheduled=live.scheduled,
        first_token=live.first_token,
        finish=live.finish,
        preemptions=live.preemptions,
        evictions=live.evictions,
        blocks_freed=live.blocks_freed,
    )
