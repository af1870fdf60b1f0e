"""Hooks into the attention layers of a model runner, and which layers can have them."""

from __future__ import annotations

import re
from typing import Any

import torch

from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm.cache import LayerCache
from kvreclaim.runtimes.vllm.observer import LayerHook
from kvreclaim.runtimes.vllm.rowstate import Shape
from kvreclaim.scores.centres_file import CentresFile
from kvreclaim.scores.distance import QueryCentres


def hook_layers(runner: Any) -> list[LayerHook]:
    """Put a hook into each attention layer of vLLM's model runner; return them in the order of the layers.

    Raises
    ------
    InputError
        If a layer's attention or the layout of its cache is not supported.
    """
    from kvreclaim.runtimes.vllm.attention import EvictingImpl

    context = runner.compilation_config.static_forward_context
    names = [name for group in runner.kv_cache_config.kv_cache_groups for name in group.layer_names]
    hooks = []
    for place, name in enumerate(sorted(names, key=_number_of)):
        layer = context[name]
        _check_attention(name, layer, EvictingImpl)
        cache = LayerCache(layer.kv_cache)
        cache.check(layer)
        layer.impl.hook = LayerHook(place, cache, layer.impl.scale)
        hooks.append(layer.impl.hook)
    if not hooks or len({(hook.cache.kv_heads, hook.cache.head_dim) for hook in hooks}) != 1:
        raise InputError("layers of different KV heads or head sizes are not supported: pass another model")
    return hooks


def set_centres(hooks: list[LayerHook], file: str | None, shape: Shape) -> None:
    """Give each layer its query centres, or none where there is no file.

    Raises
    ------
    InputError
        If the file holds no query centres, or those of another model.
    """
    if file is None:
        for hook in hooks:
            hook.centres = None
        return
    known = CentresFile.load_for(file, shape.layers, shape.heads, shape.head_dim)
    for hook, centre, spread in zip(hooks, known.centre, known.spread, strict=True):
        hook.centres = QueryCentres(torch.from_numpy(centre), torch.from_numpy(spread))
        hook.frequencies = torch.from_numpy(known.frequencies)


def _check_attention(name: str, layer: Any, supported: Any) -> None:
    impl = layer.impl
    if not isinstance(impl, supported):
        raise InputError(f"{name} has attention {type(impl).__name__}: supported is CPU_ATTN alone")
    special = {
        "a sliding window": impl.sliding_window not in (None, -1),
        "a soft cap": bool(impl.logits_soft_cap),
        "ALiBi": impl.alibi_slopes is not None,
        "learned sinks": impl.sinks is not None,
        "shared KV layers": impl.kv_sharing_target_layer_name is not None,
        "a quantised KV cache": impl.is_fp8_kv_cache,
    }
    if found := [what for what, has in special.items() if has]:
        raise InputError(f"{name} has {found[0]}, which is not supported: pass another model")


def _number_of(name: str) -> int:
    found = re.search(r"\d+", name)
    return int(found.group()) if found else 0
