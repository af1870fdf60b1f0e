"""Quality: how far what a model says next moves when only a keep mask is left of its cache.

All three figures compare with the same model on its full cache, over the same next tokens, teacher-forced:

- KL: divergence of the masked model's distribution over the next token from the full one's, in nats,
  KL(full || masked); 0 where nothing changed, and sensitive to all that did;
- delta NLL: rise of the negative log likelihood of the actual next tokens, in nats; may be negative;
- top-1 agreement: share of tokens after which both find the same token most likely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvreclaim.capture.quality.replay import replay_logits
from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask

AT_ONCE = 32
"""Tokens whose divergence is computed at once: with a vocabulary of 256K, 32 MB a temporary."""


@dataclass(frozen=True)
class Quality:
    """Means over the next tokens, with the population standard deviation over tokens.

    Parameters
    ----------
    kl, kl_std
        KL(full || masked) after each token, in nats.
    delta_nll, delta_nll_std
        Rise of the negative log likelihood of each token but the first, in nats.
    top1
        Share of tokens after which the most likely token is the same.
    tokens
        Next tokens: the count of ``kl`` and ``top1``, and one more than that of ``delta_nll``.
    """

    kl: float
    kl_std: float
    delta_nll: float
    delta_nll_std: float
    top1: float
    tokens: int


class Continuation:
    """The tokens that follow a prompt, and what the model says of them on its full cache.

    The full cache's side is computed once, here; `quality` then judges any number of masks.

    Parameters
    ----------
    model
        A decoder-only model of transformers.
    cache
        The full cache of the prompt; see `kvreclaim.capture.quality.replay.replaying`.
    next_ids
        Token ids that follow the prompt, ``[n]`` or ``[1, n]``, at least two.

    Raises
    ------
    InputError
        If there are fewer than two tokens, more than one sequence, or the cache can't be replayed.
    """

    def __init__(self, model: Any, cache: Any, next_ids: Tensor) -> None:
        if next_ids.numel() < 2 or next_ids.numel() != next_ids.shape[-1]:
            raise InputError(f"next_ids have shape {list(next_ids.shape)}: pass at least two tokens, [n]")
        self._model, self._cache = model, cache
        self._next_ids = next_ids.reshape(-1).to(model.device)
        self._full = self._log_probabilities(cache, None)
        self._full_nll = self._nll(self._full)

    @property
    def tokens(self) -> int:
        """Number of next tokens."""
        return len(self._next_ids)

    @property
    def nll(self) -> float:
        """Mean negative log likelihood of the tokens but the first on the full cache, in nats."""
        return float(self._full_nll.mean())

    def quality(self, mask: KeepMask) -> Quality:
        """Judge a keep mask of the prompt; InputError if it is not of the cache's shape."""
        return self._judged(self._log_probabilities(self._cache, mask))

    def quality_of_cache(self, cache: Any) -> Quality:
        """Judge another cache of the prompt, such as one held in fewer bits."""
        return self._judged(self._log_probabilities(cache, None))

    def _judged(self, masked: Tensor) -> Quality:
        parts = [slice(start, start + AT_ONCE) for start in range(0, self.tokens, AT_ONCE)]
        kl = torch.cat([_kl(self._full[part], masked[part]) for part in parts])
        delta_nll = self._nll(masked) - self._full_nll
        return Quality(
            kl=float(kl.mean()),
            kl_std=float(kl.std(correction=0)),
            delta_nll=float(delta_nll.mean()),
            delta_nll_std=float(delta_nll.std(correction=0)),
            top1=float((masked.argmax(-1) == self._full.argmax(-1)).double().mean()),
            tokens=self.tokens,
        )

    def _log_probabilities(self, cache: Any, mask: KeepMask | None) -> Tensor:
        """Return ``[n, vocabulary]`` in float32: what is likely after each of the next tokens."""
        logits = replay_logits(self._model, cache, mask, self._next_ids)
        return torch.log_softmax(logits.float(), dim=-1)

    def _nll(self, log_probabilities: Tensor) -> Tensor:
        """Return the negative log likelihood of each next token but the first, ``[n - 1]`` in float64."""
        return -log_probabilities[:-1].gather(1, self._next_ids[1:, None])[:, 0].double()


def _kl(full: Tensor, masked: Tensor) -> Tensor:
    """Return KL(full || masked) of log probabilities ``[n, vocabulary]``, ``[n]`` in float64.

    Summed in float64: at mild compression the divergence is below what a float32 sum resolves.
    """
    return (full.exp() * (full - masked)).sum(-1, dtype=torch.float64)


def quality(model: Any, cache: Any, mask: KeepMask, next_ids: Tensor) -> Quality:
    """Judge one keep mask; for several of the same prompt, make one `Continuation`.

    Parameters and errors are those of `Continuation` and its `quality`.
    """
    return Continuation(model, cache, next_ids).quality(mask)
