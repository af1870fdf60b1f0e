"""Evictions recorded over a generation, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
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
from kvreclaim.capture.inside.checks import check_prompt
from kvreclaim.capture.inside.queries import observed_queries
from kvreclaim.capture.inside.quiet import quiet_kvpress
from kvreclaim.capture.inside.rotary import bind_rotary
from kvreclaim.capture.inside.surroundings import attention_set_to, named_errors, seeded
from kvreclaim.capture.record import living_rows
from kvreclaim.capture.rows.history import LayerHistory
from kvreclaim.capture.rows.match import rows_of
from kvreclaim.capture.series import NEVER, DecodingRecord
from kvreclaim.errors import InputError
from kvreclaim.validate import positive_int


def record_decoding(
    model: Any,
    press: BasePress,
    input_ids: torch.Tensor,
    new_tokens: int = 256,
    *,
    name: str = "",
    continuation: torch.Tensor | None = None,
    seed: int = 0,
) -> DecodingRecord:
    """Let a model generate under a press, and record which KV pairs live after each step.

    The cache really shrinks, and each token is the most likely one given what is left. In a model that mixes
    full with sliding-window attention only the full layers are evicted from; what a window drops by itself
    counts as kept, the window is the layout's matter.

    Parameters
    ----------
    model
        A causal language model of transformers.
    press
        A press that evicts while decoding, as `kvreclaim.capture.presses.decoding.make_decoding` returns; one
        that evicts in the prefill alone gives a series that stands still.
    input_ids
        The prompt, ``[1, tokens]``.
    new_tokens
        Steps after the prompt.
    name
        Label of the press.
    continuation
        ``[1, new_tokens or more]``: tokens to read instead of the model's own choice.
    seed
        Of what presses draw at random.

    Raises
    ------
    InputError
        If the prompt and its continuation can't be read, the press fails, or rewrites rows.
    """
    positive_int(new_tokens, "new_tokens")
    check_prompt(model, input_ids, new_tokens)
    if continuation is not None and continuation.shape[-1] < new_tokens:
        raise InputError(
            f"a continuation of {continuation.shape[-1]} tokens for {new_tokens} steps: pass a longer one"
        )
    forced = None if continuation is None else continuation.reshape(-1)[:new_tokens].tolist()
    recorder = _Recorder(model, press, name or type(press).__name__, seed)
    hooked = recorder.hooked(input_ids.shape[1] + new_tokens)
    with torch.inference_mode(False), torch.no_grad(), quiet_kvpress(), hooked:
        read = _generate(model, input_ids, new_tokens, forced, recorder)
    return DecodingRecord(name, model_name(model), input_ids.shape[1], recorder.evicted_at(), tuple(read))


def _generate(
    model: Any, input_ids: torch.Tensor, new_tokens: int, forced: list[int] | None, recorder: _Recorder
) -> list[int]:
    cache, step_ids, read = DynamicCache(), input_ids, []
    for step in range(new_tokens + 1):
        recorder.step = step
        first = 0 if step == 0 else input_ids.shape[1] + step - 1
        positions = torch.arange(first, first + step_ids.shape[1], device=input_ids.device)[None]
        output = model(
            input_ids=step_ids,
            past_key_values=cache,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
        )
        if step < new_tokens:
            token = int(output.logits[0, -1].argmax()) if forced is None else forced[step]
            read.append(token)
            step_ids = torch.tensor([[token]], device=input_ids.device)
    return read


class _Recorder:
    """Hooks a press between two of its own: one that sees what a layer wrote, one what the press left."""

    def __init__(self, model: Any, press: BasePress, name: str, seed: int) -> None:
        self._model, self._press, self._name, self._seed = model, press, name, seed
        self._modules = attention_layers(model)
        self._histories = [LayerHistory(NEVER) for _ in self._modules]
        self.step = 0

    @contextmanager
    def hooked(self, tokens: int) -> Iterator[None]:
        """Press and record within the block, for a generation of so many tokens in all."""
        with ExitStack() as stack:
            stack.enter_context(attention_set_to(self._model, "sdpa"))
            stack.enter_context(observed_queries(self._model))
            with named_errors(self._name):
                self._press.post_init_from_model(self._model)
            rotary = decoder_of(self._model).rotary_emb
            for module, evicts in zip(self._modules, evictable(self._model, tokens), strict=True):
                if evicts:
                    bind_rotary(module, rotary)
                    stack.callback(module.register_forward_hook(self._after, with_kwargs=True).remove)
            if hasattr(self._press, "reset"):
                stack.callback(self._press.reset)
            yield

    def _after(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        index, new = module.layer_idx, kwargs["hidden_states"].shape[1]
        layer, history = kwargs["past_key_values"].layers[index], self._histories[module.layer_idx]
        if self.step == 0:
            module.masked_key_indices = None
        history.write(rows_of(layer.keys[:, :, -new:], layer.values[:, :, -new:]))
        marked = module.masked_key_indices
        with (
            named_errors(self._name),
            seeded(self._seed, self.step * len(self._modules) + index, layer.keys.device),
        ):
            self._press.forward_hook(module, args, kwargs, output)
        self._settle(index, layer, module.masked_key_indices is not marked)
        for earlier in range(index):  # a press that decides for all layers at once cuts those as well
            if self._histories[earlier].evicted_at.numel():
                self._settle(earlier, kwargs["past_key_values"].layers[earlier], marks_changed=False)

    def _settle(self, index: int, layer: Any, marks_changed: bool) -> None:
        """Take down what the press left of a layer, if that changed."""
        history = self._histories[index]
        if history.unchanged(layer.keys.shape[2]) and not marks_changed:
            return
        with named_errors(self._name):
            left = rows_of(layer.keys, layer.values)
            history.settle(left, living_rows(self._modules[index], left), self.step)

    def evicted_at(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return int32 ``[layers, kv_heads, tokens]``; layers that the press is kept from evict nothing."""
        written = [history.evicted_at for history in self._histories if history.evicted_at.numel()]
        geometry = geometry_of(self._model.config)
        shape = (geometry.layers, geometry.kv_heads, written[0].shape[1])
        evicted = np.full(shape, NEVER, np.int32)
        for index, history in enumerate(self._histories):
            if history.evicted_at.numel():
                evicted[index] = history.evicted_at.cpu().numpy()
        return evicted
