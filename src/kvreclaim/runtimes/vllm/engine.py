"""vLLM's engine in this process, with eviction, and what is observed of it.

The scenario of a small pool, with and without eviction, on one engine::

    from kvreclaim.runtimes.vllm.engine import Engine
    from kvreclaim.runtimes.vllm.options import Options

    with Engine(model, pool_blocks=40, block_size=32) as engine:
        without = engine.run(prompts, Options("none"), max_tokens=64)
        packed = engine.run(prompts, Options("snapkv", budget=128, mode="pack"), max_tokens=64)
    without.summary()   # {'peak_running': 2, 'steps': 257, 'blocks_freed': 0, ...}
    packed.steps        # StepRecord(step=1, free_blocks=6, scheduled=2, running=2, waiting=6, ...), ...
    packed.evictions    # EvictionRecord(step=1, request='2.0-...', tokens=520, kept=128, ...), ...

All prompts are added before the first step, in their order. Decoding is greedy and runs to ``max_tokens``
whatever the model says (``ignore_eos``), so that a run depends on lengths and not on words.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from types import TracebackType
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.processes import interrupts_at_stops
from kvreclaim.runtimes.vllm.environment import set_environment
from kvreclaim.runtimes.vllm.options import VARIABLE, Options
from kvreclaim.runtimes.vllm.records import EvictionRecord, ObservedRun, RequestOutput, StepRecord
from kvreclaim.runtimes.vllm.versions import check_version
from kvreclaim.validate import check_at_most, positive_int


def observe_run(
    model: str,
    prompts: Sequence[Sequence[int]],
    options: Options,
    *,
    pool_blocks: int,
    block_size: int = 32,
    max_tokens: int = 64,
    **settings: Any,
) -> ObservedRun:
    """Run prompts through a new engine and return what was observed; `Engine` makes several runs on one.

    Parameters
    ----------
    model
        A model's folder, as vLLM takes it.
    prompts
        Token ids of each prompt, in the order of arrival.
    options
        What is evicted; ``Options("none")`` to observe the full cache.
    pool_blocks, block_size, settings
        As `Engine` takes them.
    max_tokens
        Tokens to generate for each prompt.

    Raises
    ------
    InputError
        As `Engine` and `Engine.run`.
    """
    with Engine(model, pool_blocks=pool_blocks, block_size=block_size, **settings) as engine:
        return engine.run(prompts, options, max_tokens)


class Engine:
    """An engine of vLLM in this process, with the plugin's hands in it.

    Prefix caching and asynchronous scheduling are off and the model runs eagerly. Close it, or use it in a
    ``with``: vLLM keeps one engine's distributed state per process.

    Parameters
    ----------
    model
        A model's folder, as vLLM takes it.
    pool_blocks
        Usable blocks; vLLM's null block comes on top.
    block_size
        Tokens of a block: on CPU a multiple of 32.
    dtype
        Of weights and KV cache.
    max_model_len, max_num_batched_tokens, max_num_seqs
        vLLM's own: the longest request, the tokens and the requests of one step.
    settings
        Further arguments of ``vllm.LLM``.

    Raises
    ------
    InputError
        If vLLM is missing or of a version that is not supported, or the settings are refused.
    """

    def __init__(
        self,
        model: str,
        *,
        pool_blocks: int,
        block_size: int = 32,
        dtype: str = "float32",
        max_model_len: int = 1024,
        max_num_batched_tokens: int = 1024,
        max_num_seqs: int = 16,
        **settings: Any,
    ) -> None:
        positive_int(pool_blocks, "pool_blocks")
        check_version()
        set_environment()
        if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] != "0":
            raise InputError("VLLM_ENABLE_V1_MULTIPROCESSING is set: an engine in this process needs it at 0")
        from vllm import LLM

        from kvreclaim.runtimes.vllm.plugin import register

        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = Options("none").as_json()
        try:
            register()
            self._llm = LLM(
                model=model,
                dtype=dtype,
                block_size=block_size,
                max_model_len=max_model_len,
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=max_num_seqs,
                num_gpu_blocks_override=pool_blocks + 1,
                **{"enforce_eager": True, "disable_log_stats": True, **settings},
            )
        except InputError:
            raise
        except (ValueError, OSError) as error:  # vLLM's, pydantic's and the hub's refusals
            raise InputError(f"vLLM refuses {model} or the settings: {reason_of(error)}") from error
        finally:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before
        self.pool_blocks, self.block_size = pool_blocks, block_size
        self._core = self._llm.llm_engine.engine_core.engine_core
        self._runs = 0

    @property
    def llm(self) -> Any:
        """The ``LLM`` of vLLM."""
        return self._llm

    def configure(self, options: Options) -> None:
        """Set what is evicted from now on.

        Raises
        ------
        InputError
            If requests are running, or the options do not fit the model.
        """
        self._core.scheduler.kvreclaim.configure(options, self._core.model_executor.collective_rpc)

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        options: Options,
        max_tokens: int = 64,
        tokens_per_step: int | None = None,
        after_step: Callable[[int, Engine], None] | None = None,
    ) -> ObservedRun:
        """Run prompts to their end and return what was observed.

        Parameters
        ----------
        prompts
            Token ids of each prompt; all are added before the first step.
        options
            What is evicted.
        max_tokens
            Tokens to generate for each prompt.
        tokens_per_step
            The most tokens that a step computes, at most the engine's ``max_num_batched_tokens`` (the
            default); longer prefills are chunked.
        after_step
            Called with the step's number and this engine after each step; may abort requests.

        Raises
        ------
        InputError
            As `configure`; or if a prompt is empty.
        """
        from vllm import SamplingParams

        count = positive_int(max_tokens, "max_tokens")
        self._check(prompts, count)
        self.configure(options)
        limit = self._core.scheduler.scheduler_config.max_num_batched_tokens
        if tokens_per_step is not None:
            limit = check_at_most(tokens_per_step, limit, "tokens_per_step", "max_num_batched_tokens")
        self._core.scheduler.max_num_scheduled_tokens = positive_int(limit, "tokens_per_step")
        self._runs += 1
        watch = _Watch(self._core.scheduler.kvreclaim)
        sampling = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        engine, finished = self._llm.llm_engine, {}
        started = time.perf_counter()
        for number, prompt in enumerate(prompts):
            engine.add_request(f"{self._runs}.{number}", {"prompt_token_ids": list(prompt)}, sampling)
        try:
            with watch, interrupts_at_stops() as stop:
                while engine.has_unfinished_requests():
                    stop()
                    for output in engine.step():
                        if output.finished:
                            finished[output.request_id] = output
                    if after_step is not None:
                        after_step(len(watch.steps), self)
        except BaseException:
            engine.abort_request([f"{self._runs}.{number}" for number in range(len(prompts))])
            raise
        seconds = time.perf_counter() - started
        outputs = [
            _as_output(finished, f"{self._runs}.{number}", prompt) for number, prompt in enumerate(prompts)
        ]
        return ObservedRun(watch.steps, watch.evictions, outputs, self.pool_blocks, self.block_size, seconds)

    def _check(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
        """Refuse prompts that vLLM would refuse or cut short once some of them are queued."""
        config = self._llm.llm_engine.vllm_config.model_config
        if not prompts or not all(len(prompt) for prompt in prompts):
            raise InputError("pass at least one prompt, none of them empty")
        longest, vocabulary = max(map(len, prompts)) + max_tokens, config.get_vocab_size()
        if longest > config.max_model_len:
            raise InputError(
                f"a prompt and its {max_tokens} tokens are {longest}: pass at most {config.max_model_len}, "
                "or a larger max_model_len"
            )
        for prompt in prompts:
            if not all(isinstance(token, Integral) and 0 <= token < vocabulary for token in prompt):
                raise InputError(f"a prompt holds what is no token id: pass whole numbers below {vocabulary}")

    def abort(self, number: int) -> None:
        """Abort a prompt of the run that is going on, by its place among the prompts."""
        self._llm.llm_engine.abort_request([f"{self._runs}.{number}"])

    def free_blocks(self) -> int:
        """Return the blocks in vLLM's free queue."""
        return int(self._core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def close(self) -> None:
        """Shut the engine down."""
        self._llm.llm_engine.engine_core.shutdown()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def reason_of(error: Exception) -> str:
    """Return the first line of what a library says of a refusal."""
    details = getattr(error, "errors", None)  # pydantic's
    told = str(details()[0]["msg"]) if callable(details) else str(error)
    return (told.strip().splitlines() or [type(error).__name__])[0]


class _Watch:
    """Collects an engine's records while it is open, counted from its first step."""

    def __init__(self, half: Any) -> None:
        self.steps: list[StepRecord] = []
        self.evictions: list[EvictionRecord] = []
        self._half = half
        self._step, self._preemptions = half.step, half.preemptions

    def __enter__(self) -> _Watch:
        self._half.ledger.listeners.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._half.ledger.listeners.remove(self)

    def on_step(self, record: StepRecord) -> None:
        self.steps.append(
            replace(record, step=record.step - self._step, preemptions=record.preemptions - self._preemptions)
        )

    def on_eviction(self, record: EvictionRecord) -> None:
        self.evictions.append(replace(record, step=record.step - self._step))


def _as_output(finished: dict[str, Any], request: str, prompt: Sequence[int]) -> RequestOutput:
    name = request.split(".")[1]
    if request not in finished:
        return RequestOutput(name, tuple(prompt), (), "", "abort")
    said = finished[request].outputs[0]
    return RequestOutput(name, tuple(prompt), tuple(said.token_ids), said.text, said.finish_reason or "abort")
