"""The worker's half of the plugin: it sees queries, packs rows, and shortens block tables.

vLLM mixes `EvictingWorker` into its worker class (``worker_extension_cls``); the scheduler's half reaches it
by ``collective_rpc``, in the same process or another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvreclaim.cost import read_copy_cost
from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm.checks import check_blocks
from kvreclaim.runtimes.vllm.compacting import StepBudget, plan_rows
from kvreclaim.runtimes.vllm.evicted import Evicted, tell
from kvreclaim.runtimes.vllm.hooks import hook_layers, set_centres
from kvreclaim.runtimes.vllm.kinds import RECEIVED, REMEMBERING
from kvreclaim.runtimes.vllm.maskfiles import MaskFile
from kvreclaim.runtimes.vllm.observer import StepRow
from kvreclaim.runtimes.vllm.options import Options, parse
from kvreclaim.runtimes.vllm.plan import RowPlan, end_to_end, plan_row
from kvreclaim.runtimes.vllm.rowstate import RowState, Shape
from kvreclaim.runtimes.vllm.selection import keep_from_file, kind_of_scores, select


class EvictingWorker:
    """Methods that vLLM's worker gains."""

    model_runner: Any

    def kvreclaim_start(self, option: str) -> None:
        """Put the hands in, once the KV cache is there; InputError if its layout is not supported."""
        self.kvreclaim_half = WorkerHalf(self.model_runner)
        self.kvreclaim_half.configure(parse(option))

    def kvreclaim_configure(self, option: str) -> None:
        """Set what is evicted from now on; InputError if it does not fit the model."""
        self.kvreclaim_half.configure(parse(option))

    def kvreclaim_evict(self, due: Sequence[tuple[str, int]]) -> list[Evicted]:
        """Evict from some requests, given with their computed tokens."""
        return [self.kvreclaim_half.evict(request, computed) for request, computed in due]

    def kvreclaim_compact(self, running: Sequence[tuple[str, int]]) -> list[Evicted]:
        """Compact the rows of some requests, given with their computed tokens, as far as a step may copy."""
        return self.kvreclaim_half.compact(dict(running))


class WorkerHalf:
    """The rows of one model runner.

    Parameters
    ----------
    runner
        vLLM's model runner, its KV cache initialised.

    Raises
    ------
    InputError
        If its attention or its cache is not supported.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._states: dict[str, RowState] = {}
        self._options = Options("none")
        self._masks: MaskFile | None = None
        self._budget: StepBudget | None = None
        self._hooks = hook_layers(runner)
        self._first = self._hooks[0].cache
        heads = runner.model_config.get_num_attention_heads(runner.parallel_config)
        self._shape = Shape(len(self._hooks), self._first.kv_heads, heads, self._first.head_dim)
        self._table = runner.input_batch.block_table.block_tables[0]
        if self._table.block_size != self._first.block_size:
            raise InputError(
                f"blocks of {self._first.block_size} tokens in tables of {self._table.block_size} are not "
                "supported: pass a block_size that the attention kernel takes as it is"
            )
        self._wrap()

    def configure(self, options: Options) -> None:
        """Set what is evicted from now on."""
        check_blocks(options, self._table.block_size)
        masks = None
        if options.masks is not None:
            masks = MaskFile(options.masks, self._shape.layers, self._shape.kv_heads)
        budget = self._step_budget(options) if options.mode == "compact" else None
        set_centres(self._hooks, options.centres, self._shape)
        self._options, self._masks, self._budget = options, masks, budget
        for hook in self._hooks:
            hook.options, hook.rows = options, []

    def evict(self, request: str, computed: int) -> Evicted:
        """Evict from one request that has so many computed tokens, by the option."""
        options, state = self._options, self._states[request]
        row, ids = self._row_of(request)
        blocks, tokens = torch.from_numpy(ids), state.filled(computed)
        started = time.perf_counter()
        scores = torch.stack([hook.scores(state, computed, blocks) for hook in self._hooks]).numpy()
        scored = time.perf_counter()
        keep = self._keep(request, state, scores, computed)
        limit = options.copy_budget
        plan = plan_row(
            keep,
            self._table.block_size,
            options.mode,
            None if limit is None else limit // self._first.pair_bytes,
        )
        self._carry_out(request, row, ids, plan)
        score_seconds, event = state.score_seconds + scored - started, state.event
        unequal = options.mode == "pack" and not _equal(plan) and limit is None
        state.evicted(plan, computed, masked=unequal or options.mode in ("mask", "compact"))
        if options.buffer is None:
            state.forget_queries()
        seconds = time.perf_counter() - scored
        asked, effective = self._logical_masks(state, plan, computed, state.masked)
        told = self._tell(request, event, tokens, plan, (score_seconds, seconds))
        return replace(told, asked=asked, effective=effective)

    def compact(self, running: Mapping[str, int]) -> list[Evicted]:
        """Move pairs within the rows of some requests, given with their computed tokens; tell of each."""
        assert self._budget is not None  # noqa: S101  # of this mode
        started, done = time.perf_counter(), []
        rows = {request: self._states[request].live_at(computed) for request, computed in running.items()}
        step = plan_rows(rows, self._table.block_size, self._budget)
        places = {request: self._row_of(request) for request in step.plans}
        self._move([(ids, step.plans[request]) for request, (_, ids) in places.items()])
        for request, plan in step.plans.items():
            state, computed = self._states[request], running[request]
            tokens = state.filled(computed)
            self._shorten(request, *places[request], plan)
            state.rearranged(plan, computed)
            done.append(self._tell(request, state.event - 1, tokens, plan, (0.0, 0.0)))
        each = (time.perf_counter() - started) / max(len(done), 1)
        return [replace(told, seconds=each, priced_seconds=step.seconds) for told in done]

    def _step_budget(self, options: Options) -> StepBudget:
        """Return what a step of the option may cost; InputError if that moves nothing of this model."""
        cost = None if options.copy_cost is None else read_copy_cost(options.copy_cost, "cpu", "pack")
        pair_bytes, layers = self._first.pair_bytes, self._shape.layers
        return StepBudget(pair_bytes, layers, options.copy_budget, options.latency_budget, cost)

    def _row_of(self, request: str) -> tuple[int, NDArray[np.int64]]:
        """Return a request's place in the runner's batch, and the blocks of its row."""
        row = self._runner.input_batch.req_id_to_index[request]
        ids = self._table.block_table.np[row, : self._table.num_blocks_per_row[row]].astype(np.int64)
        return row, ids

    def _tell(
        self, request: str, event: int, tokens: int, plan: RowPlan, seconds: tuple[float, float]
    ) -> Evicted:
        masked = self._states[request].masked
        return tell(request, event, tokens, plan, masked, self._first.pair_bytes, seconds)

    def _carry_out(self, request: str, row: int, ids: NDArray[np.int64], plan: RowPlan) -> None:
        """Move pairs as planned, and take the blocks that leave out of the row."""
        self._move([(ids, plan)])
        self._shorten(request, row, ids, plan)

    def _keep(self, request: str, state: RowState, scores: Any, computed: int) -> NDArray[np.bool_]:
        if self._masks is not None:
            prompt = self._runner.requests[request].prompt_token_ids
            mask = self._masks.of(prompt)
            tokens = state.filled(computed)
            if mask is None:
                return np.ones((self._shape.layers, self._shape.kv_heads, tokens), np.bool_)
            return keep_from_file(mask, tokens)
        positions, live = state.positions_at(computed), state.live_at(computed)
        return select(self._options, scores, positions, live, self._table.block_size, state.event)

    def _move(self, rows: Sequence[tuple[NDArray[np.int64], RowPlan]]) -> None:
        """Move pairs as planned for some rows, given with their blocks: in each layer, one copy for all."""
        blocks, moves = end_to_end(rows)
        if not moves.shape[1]:
            return
        heads = self._shape.kv_heads
        bounds = np.searchsorted(moves[0], np.arange(self._shape.layers + 1) * heads)
        ids = torch.from_numpy(blocks)
        head, source, destination = map(torch.from_numpy, (moves[0] % heads, moves[1], moves[2]))
        for hook, start, end in zip(self._hooks, bounds[:-1], bounds[1:], strict=True):
            hook.cache.move(ids, head[start:end], source[start:end], destination[start:end])

    def _shorten(self, request: str, row: int, ids: NDArray[np.int64], plan: RowPlan) -> None:
        """Take the blocks that leave from the runner's block table and from its notes on the request."""
        staying = ids[plan.blocks]
        self._table.block_table.np[row, : len(ids)] = 0
        self._table.block_table.np[row, : len(staying)] = staying
        self._table.num_blocks_per_row[row] = len(staying)
        self._runner.requests[request].block_ids[0][:] = staying.tolist()

    def _logical_masks(
        self, state: RowState, plan: RowPlan, computed: int, masked: bool
    ) -> tuple[NDArray[np.bool_] | None, NDArray[np.bool_] | None]:
        """Return what the policy keeps and what attention sees, by token."""
        if not self._options.record_masks:
            return None, None
        asked, effective = (
            np.zeros((self._shape.layers, self._shape.kv_heads, computed + 1), np.bool_) for _ in range(2)
        )
        # An empty slot's position, -1, is the last of these and no token.
        np.put_along_axis(effective, state.positions.astype(np.int64), not masked, axis=-1)
        for mask in (asked, effective):
            np.put_along_axis(mask, np.where(plan.live, state.positions, -1).astype(np.int64), True, axis=-1)
        return asked[..., :computed], effective[..., :computed]

    def _wrap(self) -> None:
        """Wrap two methods of this runner; see docs/vllm.md."""
        update, table = self._runner._update_states, self._runner.input_batch.block_table
        slots = table.compute_slot_mapping

        def update_states(output: Any) -> Any:
            for request in (*output.finished_req_ids, *(output.preempted_req_ids or ())):
                self._states.pop(request, None)
            return update(output)

        def compute_slot_mapping(requests: int, starts: Tensor, positions: Tensor) -> Any:
            return slots(requests, starts, self._prepare(requests, starts, positions))

        self._runner._update_states = update_states
        table.compute_slot_mapping = compute_slot_mapping

    def _prepare(self, requests: int, starts: Tensor, positions: Tensor) -> Tensor:
        """Note the step's rows, and return the slots that its tokens are written to, for their positions.

        Lengths that attention reads are cut to the filled slots. Positions that the model rotates by stay.
        """
        batch, rows = self._runner.input_batch, []
        bounds = starts[: requests + 1].tolist()
        removed = np.zeros(requests, np.int64)
        for index, request in enumerate(batch.req_ids[:requests]):
            before, start, end = int(batch.num_computed_tokens_cpu[index]), bounds[index], bounds[index + 1]
            if before == 0 and self._options.evicts:
                self._states[request] = RowState(self._shape, int(batch.num_tokens_no_spec[index]))
            state = self._states.get(request)
            if state is None:
                continue
            removed[index] = state.removed
            if (row := self._step_row(index, state, start, end, before + end - start)) is not None:
                rows.append(row)
        for hook in self._hooks:
            hook.rows = rows
        if not removed.any():
            return positions
        gone = torch.from_numpy(removed)
        self._runner.seq_lens[:requests] -= gone.to(self._runner.seq_lens.dtype)
        return positions - gone.repeat_interleave(starts[1 : requests + 1].long() - starts[:requests].long())

    def _step_row(self, index: int, state: RowState, start: int, end: int, computed: int) -> StepRow | None:
        """Note a request of a step, which then has so many computed tokens; None if nothing is to be done."""
        kind, due, places = kind_of_scores(self._options), self._next_eviction(state), None
        scores = due is not None and kind == RECEIVED
        if due is not None and kind in REMEMBERING:
            window = self._options.looking
            scores = computed > due - window
            if scores:
                places = state.places_of_queries(end - start, window, computed)
        if not scores and not state.masked:
            return None
        filled = -(-state.filled(computed) // self._table.block_size)
        blocks = torch.from_numpy(self._table.block_table.np[index, :filled].astype(np.int64))
        return StepRow(state, start, end, computed, blocks, scores, places)

    def _next_eviction(self, state: RowState) -> int | None:
        """Return the computed tokens at which a request is next evicted from; None if it never is.

        As `kvreclaim.runtimes.vllm.scheduler_half.SchedulerHalf` decides it.
        """
        budget, buffer = self._options.budget or 0, self._options.buffer
        if state.event == 0 and state.target > budget:
            return state.target
        return None if buffer is None else buffer + (state.since if state.event else budget)


def _equal(plan: RowPlan) -> bool:
    """Return whether every head is live in every slot of the row."""
    return bool(plan.live.all())
