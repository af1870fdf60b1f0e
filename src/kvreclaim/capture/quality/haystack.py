"""A text that needles are hidden in, sentence by sentence, to a length in tokens that is met exactly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from kvreclaim.capture.quality.needle import ADJECTIVES, NOUNS, NeedleTask, Trial
from kvreclaim.errors import InputError
from kvreclaim.validate import non_negative_int, positive_int

LOWEST, HIGHEST = 1_000_000, 10_000_000  # values have seven digits
SPARE_TOKENS = 4
SENTENCE_END = re.compile(r"(?<=[.!?]) ")

INTRODUCTION = (
    "Special codes are hidden in this text. Remember them: the question at the end asks for some.\n\n"
)


@dataclass(frozen=True)
class _Fact:
    key: str
    value: str

    @property
    def sentence(self) -> str:
        return f" The special code of {self.key} is {self.value}."


class Haystack:
    """A text to hide needles in, in the tokens of one model.

    Parameters
    ----------
    tokenizer
        A tokenizer of transformers. If it has a chat template, each trial is a user's message.
    text
        Prose; its white space is made single.

    Raises
    ------
    InputError
        If the text is empty.
    """

    def __init__(self, tokenizer: Any, text: str) -> None:
        self._tokenizer = tokenizer
        self._text = " ".join(text.split())
        if not self._text:
            raise InputError("the text to hide needles in is empty: pass prose")
        self._sentences = [self._ids(f" {sentence}") for sentence in SENTENCE_END.split(self._text)]
        self._opening, self._closing = _frame(tokenizer)

    def trial(
        self,
        task: NeedleTask,
        tokens: SupportsIndex,
        question_seen: bool,
        number: SupportsIndex,
        seed: SupportsIndex = 0,
    ) -> Trial:
        """Return one trial; equal arguments give equal trials.

        Whether the question is seen changes neither the facts nor where the text begins.

        Parameters
        ----------
        task
            What to hide and to ask.
        tokens
            Length of the prompt; the question is part of it if it is seen.
        question_seen
            Whether the prompt ends after the question, or before it.
        number
            Number of the trial, from 0.
        seed
            Seed of all trials.

        Raises
        ------
        InputError
            If the prompt is too short for the needles, or the text for the prompt.
        """
        length = positive_int(tokens, "tokens of a needle prompt")
        which = non_negative_int(number, "number of a trial")
        draw = np.random.default_rng([non_negative_int(seed, "seed"), which])
        facts = self._facts(task, draw)
        asked = facts[0].key
        facts = [facts[index] for index in draw.permutation(len(facts))]
        needles = [self._ids(fact.sentence) for fact in facts]
        question = self._ids(task.question(asked) + self._closing)
        answer_start = self._ids(task.answer_start(asked))
        seen, unseen = (question, []) if question_seen else ([], question)
        room = length - len(self._opening) - sum(map(len, needles)) - len(seen)
        hay = self._hay(room, room + len(seen), draw)
        body, spans = _insert(hay, needles, np.sort(draw.random(len(needles))))
        start = len(self._opening)
        answers = tuple(fact.value for fact in facts if fact.key == asked)
        answer = self._ids(f" {', '.join(answers)}.")
        return Trial(
            task=task.name,
            number=which,
            question_seen=question_seen,
            prompt_ids=(*self._opening, *body, *seen),
            next_ids=(*unseen, *answer_start),
            answer_ids=tuple(answer),
            answer_tokens=len(answer) + SPARE_TOKENS,
            answers=answers,
            needles=tuple(
                (start + first, start + end)
                for fact, (first, end) in zip(facts, spans, strict=True)
                if fact.key == asked
            ),
        )

    def _facts(self, task: NeedleTask, draw: np.random.Generator) -> list[_Fact]:
        """Draw the facts, those of the key asked for first; neither key nor value stands in the text."""
        while True:
            pairs = zip(draw.permutation(ADJECTIVES), draw.permutation(NOUNS), strict=False)
            keys = [f"{adjective} {noun}" for adjective, noun in pairs][: task.keys]
            values = iter(str(value) for value in _distinct(LOWEST, HIGHEST, task.keys * task.values, draw))
            facts = [_Fact(key, next(values)) for key in keys for _ in range(task.values)]
            if not any(fact.key in self._text or fact.value in self._text for fact in facts):
                return facts

    def _hay(self, room: int, reach: int, draw: np.random.Generator) -> list[list[int]]:
        """Return sentences of ``room`` tokens, the last one cut, from where ``reach`` more follow."""
        if room < 1:
            raise InputError(f"the prompt is {1 - room} tokens too short for its needles: pass a longer one")
        following = np.cumsum([len(sentence) for sentence in self._sentences][::-1])[::-1]
        starts = np.flatnonzero(following >= reach)
        if not len(starts):
            raise InputError(
                f"the text has {following[0]} tokens, the prompt takes {reach} of it: pass a longer text"
            )
        hay: list[list[int]] = []
        for sentence in self._sentences[int(draw.choice(starts)) :]:
            hay.append(sentence[:room])
            room -= len(hay[-1])
            if room == 0:
                break
        return hay

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids


def _frame(tokenizer: Any) -> tuple[list[int], str]:
    """Return the tokens before the text, and what stands between the question and the answer."""
    if not tokenizer.chat_template:
        return tokenizer(INTRODUCTION).input_ids, "\n"
    message = [{"role": "user", "content": INTRODUCTION}]
    chat = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    # Stripped, for some templates strip what they are given.
    before, introduction, after = chat.partition(INTRODUCTION.strip())
    return tokenizer(before + introduction + "\n\n", add_special_tokens=False).input_ids, after.lstrip("\n")


def _insert(
    hay: list[list[int]], needles: list[list[int]], depths: NDArray[np.float64]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Put each needle before the sentence that begins nearest to its depth, a rising share of the text.

    Returns the tokens, and the start and end of each needle in them.
    """
    lengths = np.array([len(sentence) for sentence in hay])
    begins = np.cumsum(lengths) - lengths
    nearest = np.abs(begins - depths[:, None] * lengths.sum()).argmin(axis=1).tolist()
    body: list[int] = []
    spans = []
    for index, sentence in enumerate(hay):
        for needle in (needle for needle, place in zip(needles, nearest, strict=True) if place == index):
            spans.append((len(body), len(body) + len(needle)))
            body += needle
        body += sentence
    return body, spans


def _distinct(low: int, high: int, count: int, draw: np.random.Generator) -> list[int]:
    """Draw distinct whole numbers from low up to, not including, high."""
    numbers: dict[int, None] = {}
    while len(numbers) < count:
        numbers[int(draw.integers(low, high))] = None
    return list(numbers)
