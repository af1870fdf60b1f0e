"""Many presses recorded in one prefill."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from kvpress import BasePress
from transformers import DynamicCache

from kvreclaim.capture.inside.attention_layers import (
    attention_layers,
    decoder_of,
    evictable,
    geometry_of,
    model_name,
)
from kvreclaim.capture.inside.checks import asked_ratio, check_keeps_something, check_prompt
from kvreclaim.capture.inside.queries import observed_queries
from kvreclaim.capture.inside.quiet import quiet_kvpress
from kvreclaim.capture.inside.rotary import bind_rotary
from kvreclaim.capture.inside.surroundings import attention_set_to, named_errors, seeded
from kvreclaim.capture.presses.policy_press import SHARED_SCORES
from kvreclaim.capture.presses.refusals import check_recordable, needs_attention_weights
from kvreclaim.capture.record import record
from kvreclaim.capture.rows.shadow import Prompt, Shadow
from kvreclaim.keep import KeepMask, MaskMetadata


@dataclass(frozen=True)
class Captured:
    """What `capture` recorded.

    Parameters
    ----------
    masks
        By name: the keep mask ``[layers, kv_heads, tokens]``. Its metadata hold the ratio asked for.
    seconds
        By name: time spent in the press; for those that run by themselves, their whole prefill.
    prefill_seconds
        Time of the prefills that presses shared, less the presses'.
    cache
        The full cache of the prompt, untouched by any press.
    """

    masks: dict[str, KeepMask]
    seconds: dict[str, float]
    prefill_seconds: float
    cache: DynamicCache

    @property
    def retained(self) -> dict[str, float]:
        """By name: the fraction of KV pairs that survived; a press may miss the ratio asked for."""
        return {name: float(mask.array.mean()) for name, mask in self.masks.items()}


def capture(
    model: Any, presses: Mapping[str, BasePress], input_ids: torch.Tensor, *, seed: int = 0
) -> Captured:
    """Record what each press would keep of a prompt, without evicting anything.

    Each press gets a cache of its own, which holds the model's rows until it drops some; what it leaves is
    found among the rows by their hashes. All share one prefill, in sdpa attention; those that need attention
    weights share one more, in eager attention; those that run passes of their own (KVzip, KVgrad, KVCompose)
    get one each. In a model that mixes full with sliding-window attention, only the full layers are evicted
    from, except by presses that run passes of their own.

    Parameters
    ----------
    model
        A causal language model of transformers, as `kvreclaim.capture.models.load` gives it.
    presses
        By name; any press of kvpress, or of `kvreclaim.capture.presses`.
    input_ids
        The prompt, ``[1, tokens]``.
    seed
        Of what presses draw at random; each draws the same whatever else is captured.

    Raises
    ------
    InputError
        If the prompt is no single sequence or longer than the model's context, a ratio keeps nothing, a press
        can't be recorded or can't take the prompt.
    """
    check_prompt(model, input_ids)
    for name, press in presses.items():
        check_recordable(press, name)
        check_keeps_something(asked_ratio(press), input_ids.shape[1], name)
    alone: dict[str, BasePress] = {}
    weighed: dict[str, BasePress] = {}
    together: dict[str, BasePress] = {}
    for name, press in presses.items():
        kind = alone if _runs_alone(press) else weighed if needs_attention_weights(press) else together
        kind[name] = press
    # Gradients are off, but no inference mode: its tensors carry no version, which tells of writes in place.
    with torch.inference_mode(False), torch.no_grad(), quiet_kvpress():
        parts = [_own_prefill(model, name, press, input_ids, seed) for name, press in alone.items()]
        if weighed:
            parts.append(_shared_prefill(model, weighed, input_ids, seed, "eager"))
        if together or not weighed:
            parts = [_without_cache(part) for part in parts]  # one cache is enough to hold
            parts.append(_shared_prefill(model, together, input_ids, seed, "sdpa"))
    masks = {name: mask for part in parts for name, mask in part.masks.items()}
    seconds = {name: took for part in parts for name, took in part.seconds.items()}
    return Captured(
        masks={name: masks[name] for name in presses},
        seconds={name: seconds[name] for name in presses},
        prefill_seconds=sum(part.prefill_seconds for part in parts),
        cache=parts[-1].cache,
    )


def _runs_alone(press: BasePress) -> bool:
    """Say whether a press does more than hook the layers of a prefill."""
    return type(press).__call__ is not BasePress.__call__ and not getattr(press, "shares_prefill", False)


def _without_cache(captured: Captured) -> Captured:
    """Return what was recorded with an empty cache, so that the other's memory is free."""
    return replace(captured, cache=DynamicCache())


def _shared_prefill(
    model: Any, presses: Mapping[str, BasePress], input_ids: torch.Tensor, seed: int, attention: str
) -> Captured:
    tokens = input_ids.shape[1]
    cache, prompt, decoder = DynamicCache(), Prompt(), decoder_of(model)
    shadows = {name: Shadow(prompt) for name in presses}
    seconds = dict.fromkeys(presses, 0.0)
    ratios = {name: asked_ratio(press) for name, press in presses.items()}  # some know another once they ran

    def hook(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        layer = cache.layers[module.layer_idx]
        prompt.add(module.layer_idx, layer.keys, layer.values)
        given = {**kwargs, SHARED_SCORES: {}}
        for name, press in presses.items():
            shadow = shadows[name]
            shadow.open(module)
            begun = time.perf_counter()
            with named_errors(name), seeded(seed, module.layer_idx, layer.keys.device):
                press.forward_hook(module, args, {**given, "past_key_values": shadow}, output)
            seconds[name] += time.perf_counter() - begun
            with named_errors(name):
                shadow.settle(module)

    begun = time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(attention_set_to(model, attention))
        if attention != "eager":
            stack.enter_context(observed_queries(model))
        for name, press in presses.items():
            with named_errors(name):
                press.post_init_from_model(model)
        pressed = evictable(model, tokens) if presses else ()
        for module, takes_part in zip(attention_layers(model), pressed, strict=False):
            if takes_part:
                bind_rotary(module, decoder.rotary_emb)
                stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        decoder(input_ids=input_ids, past_key_values=cache, use_cache=True)
    took = time.perf_counter() - begun - sum(seconds.values())
    geometry = geometry_of(model.config)
    shape = (geometry.layers, geometry.kv_heads, tokens)
    masks = {
        name: KeepMask(shadow.mask(shape), name, MaskMetadata(model_name(model), name, ratios[name], tokens))
        for name, shadow in shadows.items()
    }
    return Captured(masks, seconds, took, cache)


def _own_prefill(model: Any, name: str, press: BasePress, input_ids: torch.Tensor, seed: int) -> Captured:
    """Record a press that runs passes of its own."""
    cache, ratio = DynamicCache(), asked_ratio(press)
    begun = time.perf_counter()
    with attention_set_to(model, "sdpa"), named_errors(name), seeded(seed, 0, input_ids.device):
        with record(model, name, ratio) as recorder, press(model):
            decoder_of(model)(input_ids=input_ids, past_key_values=cache, use_cache=True)
        mask = recorder.keep_mask
    return Captured({name: mask}, {name: time.perf_counter() - begun}, 0.0, cache)
