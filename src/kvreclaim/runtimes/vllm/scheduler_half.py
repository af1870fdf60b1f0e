"""The scheduler's half of the plugin: it says who is due, gives blocks back, and records each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm.ledger import Ledger
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.runtimes.vllm.records import EvictionRecord, StepRecord

Call = Callable[..., Any]
"""``collective_rpc`` of vLLM's executor."""

_FROM_WORKER = {field.name for field in fields(EvictionRecord)}


@dataclass
class Evictions:
    """A request that was evicted from: its computed tokens then, slots gone so far, dead pairs it holds."""

    at: int
    removed: int
    dead_pairs: int


class SchedulerHalf:
    """The plugin's part of one scheduler.

    Parameters
    ----------
    scheduler
        vLLM's, just made.
    options
        What is evicted.

    Attributes
    ----------
    ledger
        Takes the records.
    step, preemptions
        Counts since the engine started.

    Raises
    ------
    InputError
        If the scheduler's KV cache is not one group of full attention without prefix caching.
    """

    def __init__(self, scheduler: Any, options: Options) -> None:
        self._scheduler = scheduler
        self._options = options
        self._manager = _manager_of(scheduler)
        self._pool = scheduler.kv_cache_manager.block_pool
        spec = scheduler.kv_cache_config.kv_cache_groups[0]
        self._heads = len(spec.layer_names) * spec.kv_cache_spec.num_kv_heads
        self._evicted: dict[str, Evictions] = {}
        self._prefilled: set[str] = set()
        self._scheduled: set[str] = set()
        self.ledger = Ledger(options.records)
        self.ledger.start()
        self.step = 0
        self.preemptions = 0
        self._wrap()

    def configure(self, options: Options, call: Call) -> None:
        """Set what is evicted from now on, in the worker too.

        Raises
        ------
        InputError
            If requests are unfinished, or the options do not fit the model.
        """
        if self._scheduler.has_unfinished_requests():
            raise InputError("requests are running: set other options when the engine is at rest")
        ledger = Ledger(options.records)
        call("kvreclaim_configure", args=(options.as_json(),))  # which changes nothing if it refuses
        ledger.listeners = self.ledger.listeners
        self.ledger, self._options = ledger, options
        ledger.start()

    def after_step(self, call: Call) -> None:
        """Evict from the requests that are due, and record the step; nothing where nothing was scheduled."""
        if not self._scheduled:
            return
        self.step += 1
        if due := self._due():
            told = [(request.request_id, request.num_computed_tokens) for request in due]
            (done,) = call("kvreclaim_evict", args=(told,))
            for request, evicted in zip(due, done, strict=True):
                self._give_back(request, evicted, at=request.num_computed_tokens)
        if self._options.mode == "compact":
            self._compact(call)
        self.ledger.add_step(
            StepRecord(
                step=self.step,
                free_blocks=self._pool.get_num_free_blocks(),
                scheduled=len(self._scheduled),
                running=len(self._scheduler.running),
                waiting=len(self._scheduler.waiting),
                preemptions=self.preemptions,
            ),
            self._stranded_ratio(),
            at_rest=not self._scheduler.has_unfinished_requests(),
        )
        self._scheduled = set()

    def _compact(self, call: Call) -> None:
        """Let the worker compact the rows of this step's requests that hold dead pairs."""
        holding = {name for name, evicted in self._evicted.items() if evicted.dead_pairs} & self._scheduled
        running = {
            request.request_id: request
            for request in self._scheduler.running
            if request.request_id in holding
        }
        if not running:
            return
        told = [(name, request.num_computed_tokens) for name, request in running.items()]
        (done,) = call("kvreclaim_compact", args=(told,))
        for compacted in done:
            name = compacted.request
            self._give_back(running[name], compacted, at=self._evicted[name].at)

    def _due(self) -> list[Any]:
        """Return the running requests that are to be evicted from now.

        A request is due at the end of its prefill, if it has more tokens than the budget; then whenever
        ``buffer`` tokens have come since its last eviction, or beyond the budget.
        """
        options, due = self._options, []
        for request in self._scheduler.running:
            name, tokens = request.request_id, request.num_computed_tokens
            if request.is_prefill_chunk or name not in self._scheduled:
                continue
            first = name not in self._prefilled
            self._prefilled.add(name)
            if options.budget is None:
                ripe = options.evicts and first
            elif first:
                ripe = tokens > options.budget
            else:
                since = self._evicted[name].at if name in self._evicted else options.budget
                ripe = options.buffer is not None and tokens - since >= options.buffer
            if ripe:
                due.append(request)
        return due

    def _give_back(self, request: Any, evicted: Any, at: int) -> None:
        """Take the blocks that leave from the request, free them, and record what was done.

        ``at`` are the computed tokens at the request's last eviction.
        """
        name, computed = request.request_id, request.num_computed_tokens
        row = self._manager.req_to_blocks[name]
        staying = set(evicted.blocks)
        leaving = [block for place, block in enumerate(row) if place not in staying]
        before = len(row)
        row[:] = [row[place] for place in evicted.blocks]
        self._pool.free_blocks(reversed(leaving))
        self._evicted[name] = Evictions(at, computed - evicted.held, evicted.dead_pairs)
        seen = {part: value for part, value in vars(evicted).items() if part in _FROM_WORKER}
        self.ledger.add_eviction(
            EvictionRecord(
                **seen,
                step=self.step,
                policy=self._options.policy,
                mode=self._options.mode,
                budget=self._options.budget,
                computed_tokens=computed,
                blocks_before=before,
                blocks_freed=len(leaving),
            )
        )

    def _stranded_ratio(self) -> float | None:
        """Return the dead share of the filled pairs that running requests hold; None if they hold none."""
        filled = dead = 0
        for request in self._scheduler.running:
            before = self._evicted.get(request.request_id)
            gone = before.removed if before is not None else 0
            filled += (request.num_computed_tokens - gone) * self._heads
            dead += before.dead_pairs if before is not None else 0
        return dead / filled if filled else None

    def _removed(self, request: str) -> int:
        before = self._evicted.get(request)
        return before.removed if before is not None else 0

    def _wrap(self) -> None:
        """Wrap four methods of this scheduler and its block manager; see docs/vllm.md."""
        schedule, manager = self._scheduler.schedule, self._manager
        count, allocate = manager.get_num_blocks_to_allocate, manager.allocate_new_blocks
        pop = manager.pop_blocks_for_free

        def scheduling(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._scheduled = set(output.num_scheduled_tokens)
            self.preemptions += len(output.preempted_req_ids or ())
            return output

        def get_num_blocks_to_allocate(request_id: str, num_tokens: int, *args: Any, **kwargs: Any) -> Any:
            return count(request_id, num_tokens - self._removed(request_id), *args, **kwargs)

        def allocate_new_blocks(request_id: str, num_tokens: int, num_tokens_main_model: int) -> Any:
            gone = self._removed(request_id)
            return allocate(request_id, num_tokens - gone, num_tokens_main_model - gone)

        def pop_blocks_for_free(request_id: str) -> Any:
            self._evicted.pop(request_id, None)
            self._prefilled.discard(request_id)
            return pop(request_id)

        self._scheduler.schedule = scheduling
        manager.get_num_blocks_to_allocate = get_num_blocks_to_allocate
        manager.allocate_new_blocks = allocate_new_blocks
        manager.pop_blocks_for_free = pop_blocks_for_free


def _manager_of(scheduler: Any) -> Any:
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    if scheduler.kv_cache_manager.enable_caching:
        raise InputError(
            "prefix caching shares blocks, which can't be evicted from: pass enable_prefix_caching=False"
        )
    if [type(manager) for manager in managers] != [FullAttentionManager]:
        kinds = ", ".join(type(manager).__name__ for manager in managers)
        raise InputError(f"a KV cache of {kinds} is not supported: pass a model of full attention alone")
    return managers[0]
