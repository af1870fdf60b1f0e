"""Prompts cut out of texts: always the same ones, spread evenly over what there is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvreclaim.errors import InputError

TOPICS = "pydoc_data.topics"
"""The text that prompts come from by default: `kvreclaim.texts.topics`."""


@dataclass(frozen=True)
class Prompt:
    """A stretch of text as token ids, and the tokens that follow it.

    Parameters
    ----------
    name
        Label, such as ``prompt-1``.
    source
        The text it is cut out of.
    first_token
        Where it begins in that text.
    ids, next_ids
        Token ids of the prompt, and those that follow.
    """

    name: str
    source: str
    first_token: int
    ids: tuple[int, ...]
    next_ids: tuple[int, ...]

    def described(self) -> dict[str, Any]:
        """Return where it comes from, and the SHA-256 of its ids and the next ones as 64-bit integers."""
        digest = hashlib.sha256(np.array([*self.ids, *self.next_ids], "<i8").tobytes()).hexdigest()
        return {
            "name": self.name,
            "source": self.source,
            "first_token": self.first_token,
            "ids_sha256": digest,
        }


def cut(
    ids: Mapping[str, Sequence[int]], start: tuple[int, ...], prompts: int, context: int, next_tokens: int
) -> tuple[Prompt, ...]:
    """Cut prompts out of texts, none overlapping another, spread evenly over all texts.

    Parameters
    ----------
    ids
        Token ids of each text, by its name.
    start
        The tokens that every prompt begins with, as `start_of` returns them.
    prompts
        How many.
    context, next_tokens
        Tokens of a prompt, and tokens after it.

    Raises
    ------
    InputError
        If the texts are too short.
    """
    body = context - len(start)
    step = body + next_tokens
    places = [(name, first) for name, found in ids.items() for first in range(0, len(found) - step + 1, step)]
    if len(places) < prompts:
        raise InputError(
            f"{', '.join(ids)}: long enough for {len(places)} of {prompts} prompts of {context} tokens and "
            f"{next_tokens} next ones; pass more text, fewer prompts or a shorter context"
        )
    chosen = [places[number * len(places) // prompts] for number in range(prompts)]
    return tuple(
        Prompt(
            name=f"prompt-{number}",
            source=name,
            first_token=first,
            ids=(*start, *ids[name][first : first + body]),
            next_ids=tuple(ids[name][first + body : first + step]),
        )
        for number, (name, first) in enumerate(chosen, start=1)
    )


def start_of(tokenizer: Any) -> tuple[int, ...]:
    """Return the token that a tokenizer of transformers puts before a text, if it puts one."""
    first = tokenizer.bos_token_id
    return (first,) if first is not None and tokenizer("a").input_ids[:1] == [first] else ()
