"""A configuration in plain values, as commands and sweeps give it, and the simulation it stands for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.layout import model, runtime
from kvreclaim.scheduling import SchedulerSettings
from kvreclaim.serving.eviction import MODES, Eviction, rkv
from kvreclaim.serving.giveback import DYING_OF, closed_form, from_masks, from_measured
from kvreclaim.serving.hardware import GIB, GPU, Deployment, gpu
from kvreclaim.serving.memory import Memory
from kvreclaim.serving.outcome import Simulation
from kvreclaim.serving.setup import Setup
from kvreclaim.serving.simulate import Copies
from kvreclaim.serving.steptime import StepTime
from kvreclaim.serving.trace import LONGEST, Traffic
from kvreclaim.serving.traces import open_trace
from kvreclaim.validate import fraction, non_negative_int, positive, positive_int

_COUNTS = (
    *("requests", "seed", "gpus", "blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"),
    *("budget", "buffer", "page_blocks"),
)
LARGEST_BLOCK = 1 << 20  # tokens
DTYPES = {"auto": None, "fp8": "float8_e4m3fn", "int8": "int8"}


@dataclass(frozen=True)
class Scenario:
    """Everything that a simulation depends on; each field is an option of a command and an axis of a grid.

    Parameters
    ----------
    trace
        File of a trace.
    requests, load, rate, burstiness, seed
        The first requests only; how many times as fast they arrive; made-up arrivals instead.
    model, gpu, gpu_memory_gib, gpus, weights_gib, utilization, kv_dtype
        What makes the pool and the roofline; `gpu_memory_gib` in place of the GPU's own (0); `kv_dtype` is
        one of auto, fp8, int8.
    runtime
        A preset of `layout.runtimes` that sets the block size; empty: none.
    blocks
        The pool as vLLM counts it, null block included; 0: from model and GPU.
    block_size, max_num_seqs, max_num_batched_tokens, watermark, reserve_full_input
        The scheduler's.
    step_time
        base, decode, kv_token and prefill_token in seconds; empty: a roofline.
    efficiency
        Share of the roofline that is reached.
    policy, ratio, mode
        What is evicted at the end of a prefill: a closed form of `giveback`, or ``none``; and what is done.
    masks, measured
        The same from a keep-mask file, or for `policy` and `ratio` from a results folder.
    budget, buffer, evict_while_decoding
        Evicting while decoding: ``never``, ``rkv``, ``full-buffer``, ``keep-prompt`` (TensorRT-LLM's).
    copy_event, copy_token
        Seconds that a compaction adds, and each token moved.
    share_prefixes, page_blocks, hybrid
        See `memory.Memory`; `hybrid`: groups by the model's windows.
    """

    trace: str = ""
    requests: int = 0
    load: float = 1.0
    rate: float = 0.0
    burstiness: float = 1.0
    seed: int = 0
    model: str = "llama-3.1-8b"
    gpu: str = "h100"
    gpu_memory_gib: float = 0.0
    gpus: int = 1
    weights_gib: float = 0.0
    utilization: float = 0.9
    kv_dtype: str = "auto"
    runtime: str = ""
    blocks: int = 0
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    watermark: float = 0.0
    reserve_full_input: bool = True
    step_time: tuple[float, ...] = ()
    efficiency: float = 1.0
    policy: str = "none"
    ratio: float = 0.5
    mode: str = "pack"
    masks: str = ""
    measured: str = ""
    budget: int = 0
    buffer: int = 0
    evict_while_decoding: str = "never"
    copy_event: float = 0.0
    copy_token: float = 0.0
    share_prefixes: bool = False
    page_blocks: int = 0
    hybrid: bool = False

    def __post_init__(self) -> None:
        if self.runtime:
            object.__setattr__(self, "block_size", runtime(self.runtime).block_size)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Scenario:
        """Return the scenario of some named values; `InputError` for an unknown name or another type."""
        known = {field.name: field for field in fields(cls)}
        checked = {}
        for name, value in values.items():
            if name not in known:
                raise InputError(f"unknown parameter {name!r}: pass one of {', '.join(known)}")
            checked[name] = _as_default(name, known[name].default, value)
        return cls(**checked)

    def check(self) -> None:
        """Refuse numbers out of range, whatever comes of them; `InputError` names the first."""
        for name in _COUNTS:
            if non_negative_int(getattr(self, name), name) > LONGEST:
                raise InputError(f"{name} is {getattr(self, name)}: pass at most {LONGEST}")
        for name in ("gpus", "block_size", "max_num_seqs", "max_num_batched_tokens"):
            positive_int(getattr(self, name), name)
        for name in ("utilization", "watermark", "ratio", "efficiency"):
            fraction(getattr(self, name), name)
        for name in ("rate", "weights_gib", "gpu_memory_gib", "copy_event", "copy_token"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}: pass a finite number, at least 0")
        for name in ("burstiness", "load"):
            positive(getattr(self, name), name)
        if self.block_size > LARGEST_BLOCK:
            raise InputError(f"block_size is {self.block_size}: pass at most {LARGEST_BLOCK} tokens")
        if self.blocks == 1:
            raise InputError("blocks is 1: pass at least 2, one of them is vLLM's null block")

    def read(self) -> Traffic:
        """Return the trace, read once for all scenarios that name it alike."""
        if not self.trace:
            raise InputError("no trace: pass the file of one")
        file = Path(self.trace)
        state = (file.stat().st_mtime_ns, file.stat().st_size) if file.exists() else (0, 0)
        read = _read(self.trace, state, self.requests, self.rate, self.burstiness, self.seed)
        return read if self.load == 1.0 else read.faster(self.load)

    def deployment(self) -> Deployment:
        """Return the model on its GPUs."""
        if self.kv_dtype not in DTYPES:
            raise InputError(f"unknown kv_dtype {self.kv_dtype!r}: pass one of {', '.join(DTYPES)}")
        made = Deployment(
            geometry=model(self.model),
            gpu=self._gpu(),
            gpus=self.gpus,
            block_size=self.block_size,
            weight_bytes=self.weights_gib * GIB if self.weights_gib else None,
            utilization=self.utilization,
        )
        dtype = DTYPES[self.kv_dtype]
        return made if dtype is None else made.in_dtype(dtype)

    def _gpu(self) -> GPU:
        known = gpu(self.gpu)
        if not self.gpu_memory_gib:
            return known
        return replace(known, memory_mib=round(positive(self.gpu_memory_gib, "the GPU's memory") * 1024))

    def settings(self) -> SchedulerSettings:
        """Return the pool and the scheduler's limits; `InputError` as of `check`."""
        self.check()
        return SchedulerSettings(
            blocks=self.blocks - 1 if self.blocks else self._pool(),
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            reserve_full_input=self.reserve_full_input,
            watermark=self.watermark,
        )

    def _pool(self) -> int:
        """Return the usable blocks of the deployment; without groups a block holds every layer."""
        made = self.deployment()
        groups = 1 if self.hybrid else made.geometry.layers // made.layers_per_group
        return (made.blocks + 1) // groups - 1

    def timing(self) -> StepTime:
        """Return the step's time: as given, or the roofline."""
        if not self.step_time:
            return self.deployment().roofline(self.efficiency)
        if len(self.step_time) != 4:
            raise InputError("step_time: pass four numbers of seconds: base, decode, KV token, prefill token")
        return StepTime(*self.step_time)

    @property
    def evicts(self) -> bool:
        """Whether anything is ever evicted."""
        return bool(self.masks or self.measured) or self.policy != "none" or self.decoding

    @property
    def decoding(self) -> bool:
        """Whether evictions happen while decoding."""
        return self.evict_while_decoding != "never"

    def eviction(self) -> Eviction | None:
        """Return what is evicted, or None."""
        if self.mode not in MODES:
            raise InputError(f"unknown mode {self.mode!r}: pass one of {', '.join(MODES)}")
        prefill = self._at_prefill_end()
        if self.evict_while_decoding == "never":
            return prefill
        dying = self._dying()
        if self.evict_while_decoding == "rkv" and prefill is None:
            return rkv(self.budget, self.buffer, self.mode)
        kinds = {"full-buffer": False, "keep-prompt": True}
        if self.evict_while_decoding not in kinds:
            raise InputError(
                f"evict_while_decoding is {self.evict_while_decoding!r}: pass never, rkv (without a policy), "
                "full-buffer or keep-prompt"
            )
        made = prefill or Eviction(self.mode, budget=self.budget, buffer=self.buffer)
        keeps = kinds[self.evict_while_decoding]
        return replace(made, budget=self.budget, buffer=self.buffer, protect_prompt=keeps, dying=dying)

    def _dying(self) -> str:
        """Return where dead slots lie while decoding; `InputError` where nobody knows."""
        known = "" if self.masks or self.measured else self.policy
        if self.mode == "free" and known not in DYING_OF:
            what = "recorded masks" if self.masks else self.policy
            what = "a measured table" if self.measured else what
            rule = self.evict_while_decoding
            raise InputError(
                f"which whole blocks {rule} frees while decoding is not known "
                f"{'without a policy' if what == 'none' else f'from {what}'}: pass another mode, or the "
                f"policy {' or '.join(DYING_OF)}"
            )
        return DYING_OF.get(known, "scattered")

    def _at_prefill_end(self) -> Eviction | None:
        if self.masks:
            return from_masks(self.masks, self.block_size, self.mode)
        if self.measured:
            return from_measured(self.measured, self.policy, self.ratio, self.block_size, self.mode)
        return None if self.policy == "none" else closed_form(self.policy, self.ratio, self.mode)

    def memory(self) -> Memory:
        """Return what is particular about the pool."""
        windows = self.deployment().group_windows if self.hybrid else ()
        return Memory(self.share_prefixes, self.page_blocks, windows)

    def setup(self) -> Setup:
        """Return what is simulated, but for the trace."""
        copies = Copies(self.copy_event, self.copy_token)
        return Setup(self.settings(), self.timing(), self.eviction(), copies, self.memory())

    def run(self, interval: float = math.inf) -> Simulation:
        """Simulate; `interval` as of `simulate`."""
        return self.setup().run(self.read(), interval)


@lru_cache(maxsize=4)
def _read(
    file: str,
    state: tuple[int, int],  # noqa: ARG001  # when the file was written last: another one is read anew
    requests: int,
    rate: float,
    burstiness: float,
    seed: int,
) -> Traffic:
    return open_trace(file, requests=requests or None, rate=rate or None, burstiness=burstiness, seed=seed)


def _as_default(name: str, default: object, value: object) -> Any:
    """Return the value as its default's type."""
    if isinstance(default, tuple):
        if isinstance(value, list | tuple) and all(isinstance(part, int | float) for part in value):
            return tuple(float(part) for part in value)
    elif isinstance(default, bool) or isinstance(value, bool):
        if isinstance(default, bool) and isinstance(value, bool):
            return value
    elif isinstance(default, float) and isinstance(value, int | float):
        return float(value)
    elif type(value) is type(default):
        return value
    raise InputError(f"{name} is {value!r}: pass a value like {default!r}")
