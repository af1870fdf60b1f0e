"""What the plugin refuses at start, from vLLM's own configuration."""

from __future__ import annotations

from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.policies.joint import JointPolicy
from kvreclaim.runtimes.vllm.kinds import JOINT
from kvreclaim.runtimes.vllm.maskfiles import MaskFile
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.scores.centres_file import CentresFile

KERNEL_BLOCK = 32  # tokens that a kernel of CPU_ATTN takes at once


def check_config(config: Any, options: Options) -> None:
    """Refuse an engine that the plugin can't serve.

    Parameters
    ----------
    config
        vLLM's ``VllmConfig``.
    options
        What is to be evicted.

    Raises
    ------
    InputError
        If the engine has something that is not supported, or masks or query centres are of another model.
    """
    parallel, model = config.parallel_config, config.model_config
    device, block_size = config.device_config.device_type, config.cache_config.block_size
    refusals = {
        f"device {device}: the plugin serves vLLM on CPU": device != "cpu",
        "prefix caching shares blocks, which can't be evicted from: pass enable_prefix_caching=False": (
            config.cache_config.enable_prefix_caching
        ),
        "asynchronous scheduling runs ahead of evictions: pass async_scheduling=False": (
            config.scheduler_config.async_scheduling
        ),
        "a compiled model is not supported: pass enforce_eager=True": not model.enforce_eager,
        "speculative decoding is not supported: leave out speculative_config": (
            config.speculative_config is not None
        ),
        "a KV connector is not supported: leave out kv_transfer_config": config.kv_transfer_config
        is not None,
        f"{parallel.tensor_parallel_size} tensor-parallel workers: pass tensor_parallel_size=1": (
            parallel.tensor_parallel_size > 1
        ),
        f"{parallel.pipeline_parallel_size} pipeline stages: pass pipeline_parallel_size=1": (
            parallel.pipeline_parallel_size > 1
        ),
        "context parallelism is not supported: leave it out": (
            parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1
        ),
        f"kv_cache_dtype {config.cache_config.cache_dtype} is not supported: pass auto": (
            config.cache_config.cache_dtype != "auto"
        ),
        "model runner V2 is not supported: set VLLM_USE_V2_MODEL_RUNNER=0": config.use_v2_model_runner,
        f"a {model.runner_type} model does not decode: pass a model that generates": (
            model.runner_type != "generate"
        ),
    }
    for refusal, applies in refusals.items():
        if applies:
            raise InputError(refusal)
    check_block_size(block_size)
    if options.masks is not None:
        MaskFile(options.masks, model.get_num_layers(parallel), model.get_num_kv_heads(parallel))
    if options.centres is not None:
        heads = model.get_num_attention_heads(parallel)
        CentresFile.load_for(options.centres, model.get_num_layers(parallel), heads, model.get_head_size())
    if options.budget is not None and options.budget >= model.max_model_len:
        raise InputError(
            f"budget {options.budget} is never exceeded by {model.max_model_len} tokens (max_model_len): "
            "pass a smaller budget"
        )
    check_blocks(options, block_size)


def check_block_size(block_size: int) -> None:
    """Refuse blocks that the kernels of vLLM's attention on a CPU don't take."""
    if block_size % KERNEL_BLOCK:
        raise InputError(
            f"block_size {block_size}: the kernels of CPU_ATTN take a multiple of {KERNEL_BLOCK}"
        )


def check_blocks(options: Options, block_size: int) -> None:
    """Refuse a budget that whole blocks of what always stays may exceed, with the row's end anywhere.

    Raises
    ------
    InputError
        If the policy decides by block and its budget is too small for that.
    """
    least, instead = 0, "pass a larger budget"
    if options.policy == "paged-eviction":
        least = block_size
    elif options.policy in JOINT:
        policy = options.joint()
        assert isinstance(policy, JointPolicy)  # noqa: S101  # as all of these
        least = -(-policy.sinks // block_size) * block_size + policy.recent + block_size - 1
        instead += ", or fewer sinks or recent tokens"
    if options.budget is not None and options.budget < least:
        raise InputError(
            f"{options.policy} may have to keep {least} pairs in whole blocks of {block_size}, and the "
            f"budget is {options.budget}: {instead}"
        )
