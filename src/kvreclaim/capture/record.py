"""Record, beside any kvpress press, which KV pairs of a prompt survive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from kvreclaim.capture.inside.attention_layers import attention_layers, model_name
from kvreclaim.capture.rows.match import Match, Rows, match, rows_of
from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask, MaskMetadata


class Recorder:
    """The keep mask of the prompt that a model read last, taken from its cache.

    Read `keep_mask` once the press is done; for presses that compress when their block ends (KVzip) that is
    after the block. Generating on is no harm, as long as the cache lives.

    Parameters
    ----------
    model
        The model whose layers are recorded.
    name
        Label of the mask, such as the press.
    ratio
        Compression ratio asked for, to be kept with the mask.
    """

    def __init__(self, model: Any, name: str, ratio: float | None) -> None:
        self._layers = attention_layers(model)
        self._name = name
        self._metadata = MaskMetadata(model_name(model), name or None, ratio)
        self._cache: Any = None
        self._written: dict[int, Rows] = {}
        self._tokens = 0
        self._later = 0

    @property
    def keep_mask(self) -> KeepMask:
        """The mask ``[layers, kv_heads, tokens of the prompt]``.

        Rows that a sliding window drops by itself count as kept: the window is the layout's matter.

        Raises
        ------
        InputError
            If nothing was read yet, or a press rewrote rows.
        """
        matches = self._matches()
        array = np.ones((len(matches), len(matches[0].keep), self._tokens), np.bool_)
        for layer, found in enumerate(matches):
            array[layer, :, self._tokens - found.keep.shape[1] :] = found.keep.cpu().numpy()
        return KeepMask(array, self._name, replace(self._metadata, prompt_length=self._tokens))

    @property
    def retained(self) -> float:
        """The fraction of KV pairs that survived; a press may miss the ratio it was asked for."""
        return float(self.keep_mask.array.mean())

    @property
    def ambiguous_rows(self) -> int:
        """Surviving rows with an equal that did not survive: which of the two tokens is kept is a guess."""
        return sum(found.ambiguous for found in self._matches())

    def _matches(self) -> list[Match]:
        if len(self._written) != len(self._layers):
            raise InputError(
                "nothing recorded: run the model on a prompt, with a cache, inside the record block"
            )
        return [self._match_layer(index, module) for index, module in enumerate(self._layers)]

    def _match_layer(self, index: int, module: nn.Module) -> Match:
        layer = self._cache.layers[index]
        written, now = self._written[index], rows_of(layer.keys, layer.values)
        alive = living_rows(module, now)
        later = _rows_after_prompt(written, now, self._later)
        if later:
            now = Rows(now.keys[:, :-later], now.values[:, :-later])
            alive = None if alive is None else alive[:, :-later]
        try:
            return match(written, now, alive)
        except InputError as error:
            raise InputError(f"layer {index}: {error}") from error

    def _observe(self, module: Any, _: Any, kwargs: dict[str, Any], __: Any) -> None:
        """Hash what a layer wrote to an empty cache; runs before the press's own hook."""
        cache = kwargs.get("past_key_values")
        if cache is None:
            raise InputError("the model runs without a cache: pass use_cache=True")
        tokens, index = kwargs["hidden_states"].shape[1], module.layer_idx
        if cache is not self._cache:
            self._cache, self._written, self._tokens, self._later = cache, {}, tokens, 0
        if index not in self._written:
            layer = cache.layers[index]
            if layer.keys.shape[0] != 1:
                raise InputError(f"a batch of {layer.keys.shape[0]} prompts: record one prompt at a time")
            if layer.keys.shape[2] > tokens:
                raise InputError("the cache holds tokens already: record from an empty cache on")
            self._written[index] = rows_of(layer.keys, layer.values)
            module.masked_key_indices = None  # what an earlier press marked
        elif index == 0:
            self._later += tokens


@contextmanager
def record(model: Any, name: str = "", ratio: float | None = None) -> Iterator[Recorder]:
    """Record what happens to the KV cache of a prompt inside the block.

    >>> with record(model) as recorder, SnapKVPress(0.5)(model):   # doctest: +SKIP
    ...     model(input_ids, past_key_values=DynamicCache())
    >>> audit(recorder.keep_mask)                                   # doctest: +SKIP

    Every K and V row is hashed as its layer writes it; the rows left in the cache are found among them. So
    any press is recorded from outside, whatever it computes. The prompt is what the first forward pass reads,
    one sequence into an empty cache.

    Parameters
    ----------
    model
        A causal language model of transformers.
    name, ratio
        Label and asked compression ratio, to be kept with the mask.

    Raises
    ------
    InputError
        If the model's layers can't be reached, or the pass has no cache, a batch, or a cache in use.
    """
    recorder = Recorder(model, name, ratio)
    hooks = [
        module.register_forward_hook(recorder._observe, with_kwargs=True, prepend=True)
        for module in attention_layers(model)
    ]
    try:
        yield recorder
    finally:
        for hook in hooks:
            hook.remove()


def living_rows(module: Any, rows: Rows) -> Tensor | None:
    """Return bool ``[kv_heads, rows]``, False where a press only marked rows dead; None if it marked none.

    AdaKV and its kin leave the tensors alone and list (batch, head, row) in ``module.masked_key_indices``.
    """
    masked = getattr(module, "masked_key_indices", None)
    if masked is None:
        return None
    alive = rows.keys.new_ones(rows.keys.shape).bool()
    alive[masked[1], masked[2]] = False
    return alive


def _rows_after_prompt(written: Rows, now: Rows, most: int) -> int:
    """Return how many rows at the end are of later tokens: those that no head wrote for the prompt."""
    count, pairs, known = 0, now.pairs, written.pairs
    while count < min(most, now.count) and not (pairs[:, -1 - count, None] == known).any():
        count += 1
    return count
