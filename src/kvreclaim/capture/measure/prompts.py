"""The texts that prompts are cut out of, by the model's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvreclaim.capture.inside.quiet import quiet_transformers
from kvreclaim.capture.presses.calibration import MODULES as CALIBRATION_MODULES
from kvreclaim.errors import InputError
from kvreclaim.prompts import TOPICS, Prompt, cut, start_of
from kvreclaim.texts import docstrings, topics

DOCSTRINGS = "python:docstrings"


def topics_text() -> dict[str, str]:
    """Return the prose of the help texts that come with CPython."""
    return {TOPICS: topics()}


def read_texts(files: Sequence[str]) -> dict[str, str]:
    """Return the texts of files, by the path as given; ``python:docstrings`` is prose that comes with Python.

    Raises
    ------
    InputError
        If a file can't be read or is not UTF-8.
    """
    return {file: _read(file) for file in dict.fromkeys(files)}


def cut_prompts(
    texts: Mapping[str, str], tokenizer: Any, prompts: int, context: int, next_tokens: int
) -> tuple[Prompt, ...]:
    """Cut prompts out of texts by name, as `kvreclaim.prompts.cut` does.

    Where the tokenizer begins a text with a token of its own, every prompt begins with that.

    Raises
    ------
    InputError
        If the texts are too short.
    """
    with quiet_transformers():  # which warns of texts longer than the context
        ids = {name: tokenizer(text, add_special_tokens=False).input_ids for name, text in texts.items()}
    return cut(ids, start_of(tokenizer), prompts, context, next_tokens)


def _read(file: str) -> str:
    if file == DOCSTRINGS:
        return docstrings(without=CALIBRATION_MODULES)
    path = Path(file)
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{file}: is no regular file; pass a text file")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not UTF-8; pass a text file") from error
    except OSError as error:
        raise InputError(f"{file}: can't be read ({error.strerror}); pass a text file") from error
