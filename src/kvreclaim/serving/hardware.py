"""Published figures of GPUs and models, and what they say of a step's time and of a pool's size.

A roofline is a bound, not a measurement: real engines reach a part of it. Times fitted to a run are better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvreclaim.errors import InputError
from kvreclaim.layout import KVGeometry
from kvreclaim.scheduling import NULL_BLOCKS
from kvreclaim.serving.steptime import StepTime
from kvreclaim.validate import fraction, positive, positive_int

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class GPU:
    """A GPU by its data sheet: memory as its driver reports it, bandwidth, dense 16-bit matrix rate."""

    name: str
    memory_mib: int
    bandwidth: float
    flops: float


# Memory: MiB as `nvidia-smi` (AMD: `rocm-smi`) shows them; bandwidth in bytes and rate in operations a
# second: the makers' data sheets, dense BF16 without sparsity.
_GPUS = (
    GPU("a100-40gb", 40960, 1.555e12, 312e12),
    GPU("a100-80gb", 81920, 2.039e12, 312e12),
    GPU("h100", 81559, 3.35e12, 989e12),
    GPU("h200", 143771, 4.8e12, 989e12),
    GPU("b200", 183359, 7.7e12, 2250e12),
    GPU("l4", 23034, 300e9, 121e12),
    GPU("l40s", 46068, 864e9, 362e12),
    GPU("rtx-4090", 24564, 1008e9, 165e12),
    GPU("mi300x", 196592, 5.3e12, 1307e12),
)
_BY_NAME = {gpu.name: gpu for gpu in _GPUS}

# Parameters in all and active for a token, in billions, as the models' cards give them.
_PARAMETERS = {
    "llama-2-7b": (6.74, 6.74),
    "llama-2-13b": (13.02, 13.02),
    "llama-2-70b": (68.98, 68.98),
    "llama-3-8b": (8.03, 8.03),
    "llama-3-70b": (70.55, 70.55),
    "llama-3.1-8b": (8.03, 8.03),
    "llama-3.1-70b": (70.55, 70.55),
    "llama-3.1-405b": (405.85, 405.85),
    "llama-3.2-1b": (1.24, 1.24),
    "llama-3.2-3b": (3.21, 3.21),
    "opt-13b": (12.85, 12.85),
    "yi-6b": (6.06, 6.06),
    "falcon-7b": (7.22, 7.22),
    "mistral-7b": (7.24, 7.24),
    "mistral-7b-v0.3": (7.25, 7.25),
    "mixtral-8x7b": (46.70, 12.88),
    "phi-3-mini": (3.82, 3.82),
    "qwen2.5-0.5b": (0.49, 0.49),
    "qwen2.5-7b": (7.62, 7.62),
    "qwen2.5-math-7b": (7.62, 7.62),
    "qwen3-0.6b": (0.60, 0.60),
    "qwen3-4b": (4.02, 4.02),
    "qwen3-8b": (8.19, 8.19),
    "qwen3-14b": (14.77, 14.77),
    "qwen3-32b": (32.76, 32.76),
    "gemma-2-9b": (9.24, 9.24),
    "gemma-3-270m": (0.27, 0.27),
    "gpt-oss-20b": (20.91, 3.61),
    "smollm2-135m": (0.13, 0.13),
    "smollm2-360m": (0.36, 0.36),
}


def gpu(name: str) -> GPU:
    """Return a GPU by its name; `InputError` if it is unknown."""
    found = _BY_NAME.get(name.lower())
    if found is None:
        raise InputError(f"unknown GPU {name!r}: pass one of {', '.join(_BY_NAME)}")
    return found


def gpus() -> tuple[GPU, ...]:
    """Return the known GPUs."""
    return _GPUS


@dataclass(frozen=True)
class Deployment:
    """A model on GPUs, and what they leave for the KV cache.

    Parameters
    ----------
    geometry
        The model's KV geometry, its dtype that of the cache.
    gpu
        One of the GPUs.
    gpus
        How many share the model (tensor parallelism): weights and heads are split evenly.
    block_size
        Tokens of a block.
    weight_bytes
        Bytes of all weights; None: those of the model's parameters in 16 bits.
    utilization
        Share of a GPU's memory that the runtime may use (vLLM's ``gpu_memory_utilization``).
    overhead
        Bytes of a GPU for activations and graphs. vLLM 0.19 took 1.16 GiB for Llama-3.1-8B on an RTX 4090.

    Raises
    ------
    InputError
        If a number is out of range, the weights are not known, or they leave no memory.
    """

    geometry: KVGeometry
    gpu: GPU
    gpus: int = 1
    block_size: int = 16
    weight_bytes: float | None = None
    utilization: float = 0.9
    overhead: float = 1.25 * GIB

    def __post_init__(self) -> None:
        positive_int(self.gpus, "gpus")
        positive_int(self.block_size, "block_size")
        fraction(self.utilization, "the utilization")
        heads = self.geometry.kv_heads
        if heads % self.gpus and self.gpus % heads:
            raise InputError(
                f"{heads} KV heads of {self.geometry.name} on {self.gpus} GPUs: pass a number that divides "
                "them, or a multiple"
            )
        if self.weight_bytes is None:
            object.__setattr__(self, "weight_bytes", self._parameters(0) * 2)
        positive(float(self.weight_bytes or 0.0), "the weights' bytes")
        if self.kv_bytes < self.block_bytes * (1 + NULL_BLOCKS):
            raise InputError(
                f"{self.geometry.name} on {self.gpus} {self.gpu.name}: its weights, "
                f"{float(self.weight_bytes or 0.0) / GIB:.1f} GiB, leave no memory for a KV cache; pass a "
                "larger --gpu, more --gpus, or --weights-gib"
            )

    def _parameters(self, which: int) -> float:
        known = _PARAMETERS.get(self.geometry.name)
        if known is None:
            raise InputError(f"the weights of {self.geometry.name} are not known: pass --weights-gib")
        return known[which] * 1e9

    @property
    def kv_bytes(self) -> float:
        """Bytes of all GPUs that are left for the KV cache."""
        usable = self.gpu.memory_mib * MIB * self.utilization - self.overhead
        return usable * self.gpus - float(self.weight_bytes or 0.0)

    @property
    def group_windows(self) -> tuple[int | None, ...]:
        """The window of each group of equally many layers; empty where all layers see everything."""
        if not self.geometry.windows:
            return ()
        size = self.layers_per_group
        return tuple(
            group.window for group in self.geometry.layer_groups() for _ in range(len(group.layers) // size)
        )

    @property
    def layers_per_group(self) -> int:
        """Layers that one block's table maps: the most that divide each group with a window of its own."""
        sizes = [len(group.layers) for group in self.geometry.layer_groups()]
        return next(size for size in range(min(sizes), 0, -1) if all(count % size == 0 for count in sizes))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one group, over all GPUs."""
        pairs = self.block_size * self.layers_per_group * self.geometry.kv_heads
        return pairs * self.geometry.bytes_per_pair * self.head_copies

    @property
    def head_copies(self) -> int:
        """GPUs that hold the same KV head: more than one where there are more GPUs than heads, as in vLLM."""
        return max(1, self.gpus // self.geometry.kv_heads)

    @property
    def blocks(self) -> int:
        """Usable blocks of the pool: the null block is not."""
        return int(self.kv_bytes // self.block_bytes) - NULL_BLOCKS

    def roofline(self, efficiency: float = 1.0) -> StepTime:
        """Return the step's time from published figures: a bound, as far as `efficiency` is 1.

        Weights and KV pairs are read at the memory's bandwidth, two operations a parameter and token are done
        at the matrix rate; nothing overlaps, nothing is launched.
        """
        if not 0 < efficiency <= 1:
            raise InputError(
                f"the efficiency is {efficiency}: pass a share of the roofline, above 0, at most 1"
            )
        total, active = self._parameters(0), self._parameters(1)
        weights = float(self.weight_bytes or 0.0)
        bandwidth = self.gpu.bandwidth * self.gpus * efficiency
        rate = self.gpu.flops * self.gpus * efficiency
        return StepTime(
            base=weights * (active / total) / bandwidth,
            decode=2 * active / rate,
            kv_token=self.geometry.bytes_per_token * self.head_copies / bandwidth,
            prefill_token=2 * active / rate,
            source="roofline",
        )

    def in_dtype(self, dtype: str) -> Deployment:
        """Return the same with another element type of the KV cache."""
        return replace(self, geometry=replace(self.geometry, dtype=dtype))
