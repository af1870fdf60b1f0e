"""Block sizes and block tables of serving runtimes, each with the source file it was read in."""

from __future__ import annotations

from dataclasses import dataclass

from kvreclaim.errors import InputError
from kvreclaim.layout.tables import PER_HEAD, PER_LAYER, SHARED, BlockLayout


@dataclass(frozen=True)
class RuntimePreset:
    """How one runtime blocks its KV cache unless told otherwise, and where that is written.

    Parameters
    ----------
    name
        Name to look the preset up by, in kebab-case.
    title
        The runtime and the case that the preset stands for.
    block_size
        Tokens of one block.
    block_tables
        What one block table maps: ``shared``, ``per_layer`` or ``per_head``.
    repository
        Owner and name of the source repository on GitHub.
    file
        Path in the repository of the file that says so; a second one where tables are defined elsewhere.
    version
        Release or commit that the file was read at.
    date
        Day (or month) of that release or commit, ISO 8601.
    setting
        Option that changes the block size; None where it is fixed.
    note
        When the preset does not hold.

    Raises
    ------
    InputError
        If no block layout has such blocks or tables, or the name has capitals: it is looked up in any case.
    """

    name: str
    title: str
    block_size: int
    block_tables: str
    repository: str
    file: str
    version: str
    date: str
    setting: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        BlockLayout(self.block_size, self.block_tables)
        if self.name != self.name.lower():
            raise InputError(f"a runtime's name is in lower case, got {self.name!r}")

    @property
    def configurable(self) -> bool:
        """Whether the user can choose another block size."""
        return self.setting is not None

    @property
    def url(self) -> str:
        """Address of the source repository."""
        return f"https://github.com/{self.repository}"

    @property
    def layout(self) -> BlockLayout:
        """The block layout, for a model whose layers all attend to the whole context."""
        return BlockLayout(self.block_size, self.block_tables)


def runtime(name: str) -> RuntimePreset:
    """Return the preset called ``name``, in any case.

    Raises
    ------
    InputError
        If there is no such preset.
    """
    preset = _BY_NAME.get(str(name).lower())
    if preset is None:
        raise InputError(f"unknown runtime {name!r}: pass one of {', '.join(_BY_NAME)}")
    return preset


def runtimes() -> tuple[RuntimePreset, ...]:
    """Return all presets."""
    return _PRESETS


_PRESETS = (
    RuntimePreset(
        name="vllm",
        title="vLLM",
        block_size=16,
        block_tables=SHARED,
        repository="vllm-project/vllm",
        file="vllm/config/cache.py",
        version="0.32.0",
        date="2026-10",
        setting="--block-size",
        note="an attention backend may prefer 32 or 64; hybrid models with a state get larger blocks",
    ),
    RuntimePreset(
        name="vllm-cpu",
        title="vLLM on a CPU",
        block_size=32,
        block_tables=SHARED,
        repository="vllm-project/vllm",
        file="vllm/v1/attention/backends/cpu_attn.py",
        version="0.32.0",
        date="2026-10",
        setting="--block-size",
        note="multiples of 32 only",
    ),
    RuntimePreset(
        name="tensorrt-llm",
        title="TensorRT-LLM",
        block_size=32,
        block_tables=SHARED,
        repository="NVIDIA/TensorRT-LLM",
        file="tensorrt_llm/llmapi/llm_args.py",
        version="1.3.0rc27",
        date="2026-09",
        setting="kv_cache_config.tokens_per_block",
        note="a power of two; one pool for each attention window and number of heads",
    ),
    RuntimePreset(
        name="sglang",
        title="SGLang",
        block_size=1,
        block_tables=SHARED,
        repository="sgl-project/sglang",
        file="python/sglang/srt/arg_groups/overrides.py",
        version="0.5.23",
        date="2026-10-30",
        setting="--page-size",
        note="some attention backends, models and platforms raise it (FlashMLA and trtllm_mha to 64)",
    ),
    RuntimePreset(
        name="lmdeploy",
        title="LMDeploy, both engines",
        block_size=64,
        block_tables=SHARED,
        repository="InternLM/lmdeploy",
        file="lmdeploy/messages.py",
        version="0.16.0",
        date="2026-08-19",
        setting="--cache-block-seq-len",
        note="the Cambricon device fixes it at 16",
    ),
    RuntimePreset(
        name="openvino-cpu",
        title="OpenVINO GenAI on a CPU, cache eviction on",
        block_size=32,
        block_tables=PER_LAYER,
        repository="openvinotoolkit/openvino.genai",
        file="src/cpp/src/continuous_batching/cache/{kv_cache_manager,cache_orchestrator}.hpp",
        version="2026.3.0.0",
        date="2026-07-23",
        note="all layers free equally many blocks; while use_cache_eviction is off they share one table",
    ),
    RuntimePreset(
        name="openvino-gpu",
        title="OpenVINO GenAI on a GPU, cache eviction on",
        block_size=16,
        block_tables=PER_LAYER,
        repository="openvinotoolkit/openvino.genai",
        file="src/cpp/src/continuous_batching/cache/{kv_cache_manager,cache_orchestrator}.hpp",
        version="2026.3.0.0",
        date="2026-07-23",
        note="as openvino-cpu; 256 with XAttention",
    ),
    RuntimePreset(
        name="flashmla",
        title="FlashMLA, dense decoding kernel",
        block_size=64,
        block_tables=SHARED,
        repository="deepseek-ai/FlashMLA",
        file="csrc/api/dense_decode.h",
        version="9241ae3",
        date="2026-04-29",
        note="a kernel: the runtime around it owns the tables; it caches latent vectors, not K and V",
    ),
    RuntimePreset(
        name="hf-continuous-batching",
        title="Hugging Face continuous batching, transformers up to 5.3",
        block_size=32,
        block_tables=SHARED,
        repository="huggingface/transformers",
        file="src/transformers/generation/continuous_batching/cache.py",
        version="5.3.0",
        date="2026-03-04",
        setting="generation_config.block_size",
        note="from 5.4 on the default is 256: hf-continuous-batching-5.4",
    ),
    RuntimePreset(
        name="hf-continuous-batching-5.4",
        title="Hugging Face continuous batching, transformers from 5.4 on",
        block_size=256,
        block_tables=SHARED,
        repository="huggingface/transformers",
        file="src/transformers/generation/configuration_utils.py",
        version="5.24.0",
        date="2026-11-21",
        setting="ContinuousBatchingConfig.page_size",
        note="the setting was called block_size at first",
    ),
    RuntimePreset(
        name="tgi",
        title="Text Generation Inference, paged attention",
        block_size=16,
        block_tables=SHARED,
        repository="huggingface/text-generation-inference",
        file="server/text_generation_server/models/globals.py",
        version="3.3.7",
        date="2025-12-18",
        setting="ATTENTION (environment)",
        note="the fallback on older GPUs; the usual attention is tgi-flashinfer; 128 on Gaudi",
    ),
    RuntimePreset(
        name="tgi-flashinfer",
        title="Text Generation Inference, FlashInfer attention",
        block_size=1,
        block_tables=SHARED,
        repository="huggingface/text-generation-inference",
        file="server/text_generation_server/models/globals.py",
        version="3.3.7",
        date="2025-12-18",
        setting="ATTENTION (environment)",
        note="the default where the model's head size is 64, 128 or 256",
    ),
    RuntimePreset(
        name="tgi-flashdecoding",
        title="Text Generation Inference, flash decoding",
        block_size=256,
        block_tables=SHARED,
        repository="huggingface/text-generation-inference",
        file="server/text_generation_server/models/globals.py",
        version="3.3.7",
        date="2025-12-18",
        setting="ATTENTION (environment)",
        note="64 with the IPEX backend",
    ),
    RuntimePreset(
        name="nano-vllm",
        title="nano-vLLM",
        block_size=256,
        block_tables=SHARED,
        repository="GeeeekExplorer/nano-vllm",
        file="nanovllm/config.py",
        version="bb823b3",
        date="2026-04-26",
        setting="kvcache_block_size",
        note="multiples of 256 only",
    ),
    RuntimePreset(
        name="kv-compress",
        title="KV-Compress, a fork of vLLM (arXiv 2410.00161)",
        block_size=16,
        block_tables=PER_HEAD,
        repository="IsaacRe/vllm-kvcompress",
        file="vllm/{engine/arg_utils,kvcompress/block}.py",
        version="5e2a639",
        date="2024-10-28",
        setting="--block-size",
        note="8, 16 or 32; one table for each layer and KV head",
    ),
)
_BY_NAME = {preset.name: preset for preset in _PRESETS}
