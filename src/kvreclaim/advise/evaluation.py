"""A user's own evaluation, called on every prompt under every candidate.

def answers_wrong(reader) -> float:          # my_evaluation.py; --matters my_evaluation:answers_wrong
text = reader.tokenizer.decode(reader.generate(reader.next_ids[:1], limit=32))
return float("42" not in text)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask


@dataclass(frozen=True, eq=False)
class Reader:
    """A model that has read a prompt, of which a candidate has left a part.

    Parameters
    ----------
    model, tokenizer
        As loaded.
    prompt_ids, next_ids
        The prompt's tokens, and those that follow it in the text.
    cache
        The prompt's cache, full but for its number format.
    mask
        What is left of it; None for everything.
    """

    model: Any
    tokenizer: Any
    prompt_ids: tuple[int, ...]
    next_ids: tuple[int, ...]
    cache: Any
    mask: KeepMask | None

    def logits(self, ids: Sequence[int]) -> Any:
        """Return the logits ``[n, vocabulary]`` after each of the tokens fed after the prompt."""
        import torch

        from kvreclaim.capture.quality.replay import replay_logits

        return replay_logits(self.model, self.cache, self.mask, torch.tensor(list(ids)))

    def generate(self, ids: Sequence[int], limit: int, stop_ids: Sequence[int] = ()) -> list[int]:
        """Return the tokens that greedy decoding gives after feeding ``ids``, ``limit`` at most."""
        import torch

        from kvreclaim.capture.quality.replay import generate

        return generate(self.model, self.cache, self.mask, torch.tensor(list(ids)), limit, stop_ids)


Evaluation = Callable[[Reader], float]
"""Takes a reader, returns a loss: a finite number, lower is better."""


def load_evaluation(entry: str) -> Evaluation:
    """Return the function that ``module:function`` names; the current directory is searched first.

    Raises
    ------
    InputError
        If there is no such function, or its module can't be imported.
    """
    module, _, name = entry.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        function = getattr(import_module(module), name)
    except Exception as error:  # whatever a user's module raises
        raise InputError(f"{entry}: can't be imported ({error}); pass module:function") from error
    finally:
        sys.path.remove(here)
    if not callable(function):
        raise InputError(f"{entry}: is no function; pass module:function")
    return _checked(entry, function)


def _checked(entry: str, function: Callable[[Reader], Any]) -> Evaluation:
    def evaluate(reader: Reader) -> float:
        try:
            loss = float(function(reader))
        except Exception as error:  # whatever a user's function raises
            raise InputError(f"{entry}: fails ({error}); return a number for every reader") from error
        if not isfinite(loss):
            raise InputError(f"{entry}: returned {loss}; return a finite number, lower for better")
        return loss

    return evaluate
