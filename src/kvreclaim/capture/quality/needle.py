"""Needles in prose: facts hidden in a text, and a question about them.

After the retrieval tasks of RULER (Hsieh et al., 2024, arXiv 2404.06654, section 3.1), in words of our own.
A needle gives a key of two words a value of seven digits. It stands between two sentences of the text, at a
depth drawn at random.

- ``single``: one needle, and its value is asked for;
- ``multi-key``: four needles of different keys, and the value of one is asked for;
- ``multi-value``: four needles of one key, and all its values are asked for.

A trial ends its prompt either before the question or after it: a policy that evicts at the prompt's end
then has not seen what will be asked, or has. The rest of the trial is fed afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvreclaim.errors import InputError
from kvreclaim.validate import positive_int

_ADJECTIVES = (
    "amber brave calm distant eager frozen gentle hollow ivory jolly keen lucky mellow narrow olive proud "
    "quiet rapid silver tidy upper vivid warm yellow"
)
_NOUNS = (
    "anchor basket candle desert engine falcon garden harbor island jacket kettle ladder meadow needle "
    "orchard pepper quarry ribbon saddle temple umbrella valley window zebra"
)
ADJECTIVES, NOUNS = tuple(_ADJECTIVES.split()), tuple(_NOUNS.split())


@dataclass(frozen=True)
class NeedleTask:
    """How many facts the text hides.

    Parameters
    ----------
    name
        Name of the task.
    keys
        Keys in the text; one of them is asked for.
    values
        Values of each key, one a needle.

    Raises
    ------
    InputError
        If a number is not positive, or there are more keys than names for them.
    """

    name: str
    keys: int = 1
    values: int = 1

    def __post_init__(self) -> None:
        positive_int(self.values, f"values of {self.name}")
        if positive_int(self.keys, f"keys of {self.name}") > len(NOUNS):
            raise InputError(f"task {self.name} has {self.keys} keys: pass at most {len(NOUNS)}")

    def question(self, key: str) -> str:
        """Return the question about a key."""
        asked = "is the special code" if self.values == 1 else "are all the special codes"
        return f"\n\nWhat {asked} of {key} in the text?"

    def answer_start(self, key: str) -> str:
        """Return the words that the answer begins with; the values are to follow."""
        if self.values == 1:
            return f"The special code of {key} is"
        return f"The special codes of {key} are the numbers"


SINGLE = NeedleTask("single")
MULTI_KEY = NeedleTask("multi-key", keys=4)
MULTI_VALUE = NeedleTask("multi-value", values=4)
TASKS = {task.name: task for task in (SINGLE, MULTI_KEY, MULTI_VALUE)}


@dataclass(frozen=True)
class Trial:
    """One text with its needles, and one question.

    Parameters
    ----------
    task
        Name of the task.
    number
        Number of the trial among those of a seed.
    question_seen
        Whether the question is in the prompt, or fed after it.
    prompt_ids
        Tokens to prefill and evict from.
    next_ids
        Tokens to feed afterwards, up to where the answer begins.
    answer_ids
        The answer to hope for: the values in a list, in their order.
    answer_tokens
        The most tokens to read of the answer: those of `answer_ids`, and a few more.
    answers
        The values asked for, as digits, in the order in which they stand in the text.
    needles
        ``(start, end)`` in the prompt of each needle asked for.
    """

    task: str
    number: int
    question_seen: bool
    prompt_ids: tuple[int, ...]
    next_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    answer_tokens: int
    answers: tuple[str, ...]
    needles: tuple[tuple[int, int], ...]

    def recalled(self, text: str) -> int:
        """Count the answers that a text contains: RULER's string match."""
        return sum(answer in text for answer in self.answers)
