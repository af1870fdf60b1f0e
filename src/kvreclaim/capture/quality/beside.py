"""The harm of keep masks that came from elsewhere, such as a runtime's records of the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from kvreclaim.capture.quality.figures import Continuation
from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask


def kl_of_masks(
    model: Any,
    prompts: Sequence[Sequence[int]],
    followed_by: Sequence[Sequence[int]],
    masks: Mapping[str, Sequence[KeepMask]],
    report: Callable[[int], None] = lambda _: None,
) -> dict[str, list[float]]:
    """Return by name, for each prompt, KL(full || masked) over the tokens that follow it, mean, in nats.

    Each prompt is prefilled once.

    Parameters
    ----------
    model
        A decoder-only model of transformers.
    prompts, followed_by
        Token ids of each prompt, and of at least two tokens after it.
    masks
        By name: the keep mask of each prompt.
    report
        Called with the number of prompts done.

    Raises
    ------
    InputError
        If there are not as many masks as prompts, or one is of another shape than its prompt's cache.
    """
    for name, kept in masks.items():
        if len(kept) != len(prompts):
            raise InputError(f"{name} has {len(kept)} masks for {len(prompts)} prompts: pass one for each")
    found: dict[str, list[float]] = {name: [] for name in masks}
    for place, (prompt, following) in enumerate(zip(prompts, followed_by, strict=True)):
        continuation = Continuation(model, _prefilled(model, prompt), torch.tensor(following))
        for name, kept in masks.items():
            found[name].append(continuation.quality(kept[place]).kl)
        report(place + 1)
    return found


def _prefilled(model: Any, prompt: Sequence[int]) -> DynamicCache:
    cache = DynamicCache()
    ids = torch.tensor([prompt], device=model.device)
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache
