"""What the plugin changes in vLLM, each with its reason.

The option is read once, where an engine's configuration is made, and travels in it (``additional_config``) to
whichever process the engine runs in. An engine without it runs vLLM's own code unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm.checks import check_config
from kvreclaim.runtimes.vllm.options import VARIABLE, Options, from_environment, parse

KEY = "kvreclaim"
"""Where the option lies in ``additional_config``."""

EXTENSION = "kvreclaim.runtimes.vllm.worker.EvictingWorker"
BACKEND = "kvreclaim.runtimes.vllm.attention.EvictingBackend"


def apply() -> None:
    """Patch the classes of vLLM that are listed in docs/vllm.md; a second call changes nothing."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
    _replace(EngineArgs, "create_engine_config", _configuring)
    _replace(Executor, "initialize_from_config", _starting)
    _replace(Scheduler, "__init__", _scheduling)
    _replace(EngineCore, "step", _stepping)


def _replace(owner: type, name: str, wrapper: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    if not hasattr(original, "kvreclaim_original"):
        wrapped = wrapper(original)
        wrapped.kvreclaim_original = original
        setattr(owner, name, wrapped)


def _option_of(config: Any) -> Options | None:
    option = config.additional_config.get(KEY) if isinstance(config.additional_config, dict) else None
    return None if option is None else parse(option)


def _configuring(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Put the option into the configuration, fill in what it needs where it is left open, and check."""
        options = from_environment()
        if options is None:
            return original(self, *args, **kwargs)
        if self.worker_extension_cls not in ("", EXTENSION):
            raise InputError(
                f"worker_extension_cls is {self.worker_extension_cls}, and {VARIABLE} needs its own: "
                "leave one of them out"
            )
        self.worker_extension_cls = EXTENSION
        self.additional_config = {**(self.additional_config or {}), KEY: options.as_json()}
        if self.enable_prefix_caching is None:
            self.enable_prefix_caching = False
        if self.async_scheduling is None:
            self.async_scheduling = False
        config = original(self, *args, **kwargs)
        check_config(config, options)
        if options.records is not None:
            from kvreclaim.runtimes.vllm.metrics import export

            export(options.records)
        return config

    return create_engine_config


def _starting(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialize_from_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Start the worker's half once the KV cache is there."""
        result = original(self, *args, **kwargs)
        options = _option_of(self.vllm_config)
        if options is not None:
            self.collective_rpc("kvreclaim_start", args=(options.as_json(),))
        return result

    return initialize_from_config


def _scheduling(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # it stands in for one
        """Start the scheduler's half."""
        original(self, *args, **kwargs)
        options = _option_of(self.vllm_config)
        if options is not None:
            from kvreclaim.runtimes.vllm.scheduler_half import SchedulerHalf

            self.kvreclaim = SchedulerHalf(self, options)

    return __init__


def _stepping(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: Any) -> Any:
        """Evict and record after each step."""
        result = original(self)
        half = getattr(self.scheduler, "kvreclaim", None)
        if half is not None:
            half.after_step(self.model_executor.collective_rpc)
        return result

    return step
