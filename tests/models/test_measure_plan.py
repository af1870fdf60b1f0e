"""What is to be measured: prompts cut out of texts, work divided, settings in range."""

from itertools import product

import pytest

from kvreclaim import InputError

pytest.importorskip("torch", reason="needs the extra: pip install 'kvreclaim[models]'")
pytest.importorskip("kvpress", reason="needs the extra: pip install 'kvreclaim[models]'")

from kvreclaim.capture.matched.fit import SNAPKV_AT_HALF
from kvreclaim.capture.measure.plan import Plan
from kvreclaim.capture.measure.prompts import cut_prompts, read_texts, topics_text
from kvreclaim.capture.measure.settings import Needles, Settings
from kvreclaim.prompts import TOPICS, Prompt


class Words:
    """A tokenizer of words, with or without a token at the start."""

    def __init__(self, bos_token_id=None):
        self.bos_token_id = bos_token_id

    def __call__(self, text, add_special_tokens=True):
        start = [self.bos_token_id] if add_special_tokens and self.bos_token_id is not None else []
        return type("Encoding", (), {"input_ids": [*start, *map(int, text.replace("a", "0").split())]})


def numbers(first, last):
    return " ".join(map(str, range(first, last)))


def test_prompts_are_spread_and_do_not_overlap():
    cut = cut_prompts({"a": numbers(0, 100), "b": numbers(100, 160)}, Words(), 5, 8, 2)
    assert [(prompt.name, prompt.source, prompt.first_token) for prompt in cut] == [
        ("prompt-1", "a", 0),
        ("prompt-2", "a", 30),
        ("prompt-3", "a", 60),
        ("prompt-4", "a", 90),
        ("prompt-5", "b", 20),
    ]
    assert cut[4].ids == tuple(range(120, 128)) and cut[4].next_ids == (128, 129)


def test_prompts_begin_with_the_token_that_a_text_begins_with():
    cut = cut_prompts({"a": numbers(0, 18)}, Words(bos_token_id=99), 2, 8, 2)
    assert [prompt.ids for prompt in cut] == [(99, *range(7)), (99, *range(9, 16))]
    assert [prompt.next_ids for prompt in cut] == [(7, 8), (16, 17)]


def test_the_default_text_is_prose_that_does_not_repeat():
    paragraphs = topics_text()[TOPICS].split("\n\n")
    assert len(set(paragraphs)) == len(paragraphs) > 300
    assert sum(paragraph.endswith((".", ":", ")")) for paragraph in paragraphs) > 0.9 * len(paragraphs)
    assert not any("::=" in paragraph for paragraph in paragraphs)


def test_texts_that_are_no_files():
    for device in ("/dev/zero", "/"):
        with pytest.raises(InputError, match="is no regular file; pass a text file"):
            read_texts([device])


def test_a_text_too_short():
    with pytest.raises(InputError, match="a, b: long enough for 2 of 3 prompts of 8 tokens and 2 next ones"):
        cut_prompts({"a": numbers(0, 19), "b": numbers(0, 19)}, Words(), 3, 8, 2)


@pytest.mark.parametrize("jobs", [1, 2, 3, 4, 16])
def test_work_is_divided_without_loss_and_evenly(jobs):
    prompts = tuple(Prompt(f"prompt-{number}", "a", 0, (1,), (2,)) for number in range(5))
    policies = ("a", "b", "c", "d", "e", "f")
    plan = Plan("m", policies, (0.5,), prompts, SNAPKV_AT_HALF)
    parts = list(plan.parts(jobs))
    assert sorted((prompt.name, policy) for prompt, names in parts for policy in names) == sorted(
        product([prompt.name for prompt in prompts], policies)
    )
    whole = [names for _, names in parts if names == policies]
    assert len(whole) == (5 if jobs == 1 else 5 // jobs * jobs)
    shares = [len(names) for _, names in parts if names != policies]
    assert not shares or max(shares) - min(shares) <= 1


def test_settings_out_of_range():
    for other, words in (
        ({"ratios": (1.5,)}, "a ratio is 1.5"),
        ({"ratios": (0.0,)}, "a ratio is 0.0"),
        ({"ratios": ()}, "no ratios"),
        ({"policies": ()}, "no policies"),
        ({"prompts": 0}, "prompts is 0"),
        ({"next_tokens": 1}, "next_tokens is 1"),
        ({"block_sizes": (0,)}, "block_size is 0"),
        ({"target_kl": 0.0}, "target_kl is 0"),
    ):
        with pytest.raises(InputError, match=words):
            Settings("m", **other)


def test_needles_out_of_range():
    for other, words in (
        ({"trials": 0}, "needle trials is 0"),
        ({"context": 0}, "needle context is 0"),
        ({"tasks": ()}, "no needle tasks"),
        ({"ratio": 0.0}, "needle ratio is 0.0"),
        ({"ratio": 1.5}, "needle ratio is 1.5"),
    ):
        with pytest.raises(InputError, match=words):
            Needles(**{"trials": 1, **other})
    assert Needles(1, ("single", "single")).tasks == ("single",)
