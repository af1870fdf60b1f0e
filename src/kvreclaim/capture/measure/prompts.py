"""Prompts cut out of texts: always the same ones, spread evenly over what there is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvreclaim.capture.inside.quiet import quiet_transformers
from kvreclaim.errors import InputError

TOPICS = "pydoc_data.topics"
SHORTEST_PARAGRAPH = 80  # characters


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


def topics_text() -> dict[str, str]:
    """Return the prose of the help texts that come with CPython: running paragraphs, each once.

    Topics quote each other; a model copies what it has read before, so a prompt that repeats itself would
    say little of others. Grammar, examples and headings are left out.
    """
    from pydoc_data.topics import topics

    paragraphs = [part for name in sorted(topics) for part in topics[name].split("\n\n")]
    running = [" ".join(part.split()) for part in paragraphs if part[:1].isalpha()]
    prose = [part for part in dict.fromkeys(running) if len(part) >= SHORTEST_PARAGRAPH]
    return {TOPICS: "\n\n".join(prose)}


def read_texts(files: Sequence[str]) -> dict[str, str]:
    """Return the texts of files, by the path as given.

    Raises
    ------
    InputError
        If a file can't be read or is not UTF-8.
    """
    return {file: _read(file) for file in dict.fromkeys(files)}


def cut_prompts(
    texts: Mapping[str, str], tokenizer: Any, prompts: int, context: int, next_tokens: int
) -> tuple[Prompt, ...]:
    """Cut prompts out of texts, none overlapping another, spread evenly over all texts.

    Where the tokenizer begins a text with a token of its own, every prompt begins with that.

    Parameters
    ----------
    texts
        By name.
    tokenizer
        The model's.
    prompts
        How many.
    context, next_tokens
        Tokens of a prompt, and tokens after it.

    Raises
    ------
    InputError
        If the texts are too short.
    """
    start = _start(tokenizer)
    body = context - len(start)
    step = body + next_tokens
    with quiet_transformers():  # which warns of texts longer than the context
        ids = {name: tokenizer(text, add_special_tokens=False).input_ids for name, text in texts.items()}
    places = [(name, first) for name, found in ids.items() for first in range(0, len(found) - step + 1, step)]
    if len(places) < prompts:
        raise InputError(
            f"{', '.join(texts)}: long enough for {len(places)} of {prompts} prompts of {context} tokens and "
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


def _start(tokenizer: Any) -> tuple[int, ...]:
    """Return the token that the tokenizer puts before a text, if it puts one."""
    first = tokenizer.bos_token_id
    return (first,) if first is not None and tokenizer("a").input_ids[:1] == [first] else ()


def _read(file: str) -> str:
    path = Path(file)
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{file}: is no regular file; pass a text file")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not UTF-8; pass a text file") from error
    except OSError as error:
        raise InputError(f"{file}: can't be read ({error.strerror}); pass a text file") from error
