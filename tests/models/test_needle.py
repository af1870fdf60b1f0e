"""Needles: what a prompt must hold, how attempts are counted, and SmolLM2 on a few."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import prefill, prose, smollm2, torch

from kvreclaim import InputError, KeepMask
from kvreclaim.capture.quality.haystack import INTRODUCTION, Haystack
from kvreclaim.capture.quality.needle import MULTI_KEY, MULTI_VALUE, SINGLE, TASKS, NeedleTask
from kvreclaim.capture.quality.retrieval import FULL, Attempt, attempt, count, separated
from kvreclaim.keep import MaskMetadata

TEXT = " ".join(f"Sentence {number} says that {number * number} follows." for number in range(400))
NEEDLE = re.compile(r"The special code of (\w+ \w+) is (\d{7})\.")


class Letters:
    """A tokenizer whose tokens are letters; what it says of chats is a user's message."""

    eos_token_id = None

    def __init__(self, chat_template=None):
        self.chat_template = chat_template

    def __call__(self, text, add_special_tokens=True):
        start = [1] if add_special_tokens else []
        if isinstance(text, str):
            return SimpleNamespace(input_ids=start + [ord(letter) for letter in text])
        return SimpleNamespace(input_ids=[start + [ord(letter) for letter in part] for part in text])

    def decode(self, ids):
        return "".join(chr(letter) for letter in ids)

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert (tokenize, add_generation_prompt) == (False, True)
        return f"<user>{messages[0]['content'].strip()}<end>\n<model>"


HAYSTACKS = {"plain": Haystack(Letters(), TEXT), "chat": Haystack(Letters("yes"), TEXT)}
tasks = st.builds(NeedleTask, st.just("any"), keys=st.integers(1, 5), values=st.integers(1, 4))


@pytest.fixture(params=HAYSTACKS.values(), ids=HAYSTACKS.keys())
def haystack(request):
    return request.param


def text_of(ids):
    return Letters().decode(ids)


def without_needles(text):
    return re.sub(" " + NEEDLE.pattern, "", text)


@pytest.mark.parametrize("kind", HAYSTACKS)
@given(task=tasks, tokens=st.integers(2000, 3000), seen=st.booleans(), number=st.integers(0, 50))
def test_every_needle_is_in_the_prompt_and_every_answer_unique(kind, task, tokens, seen, number):
    trial = HAYSTACKS[kind].trial(task, tokens, seen, number)
    prompt = text_of(trial.prompt_ids)
    facts = NEEDLE.findall(prompt)
    keys, values = [key for key, _ in facts], [value for _, value in facts]
    assert len(trial.prompt_ids) == tokens
    assert len(values) == len(set(values)) == task.keys * task.values
    assert sorted(keys.count(key) for key in set(keys)) == [task.values] * task.keys
    assert not any(name in TEXT for name in keys + values)
    asked = re.search(r"(\w+ \w+) (is|are the numbers)$", text_of(trial.next_ids)).group(1)
    assert trial.answers == tuple(value for key, value in facts if key == asked)
    assert text_of(trial.answer_ids) == f" {', '.join(trial.answers)}."
    for (start, end), answer in zip(trial.needles, trial.answers, strict=True):
        assert text_of(trial.prompt_ids[start:end]) == f" The special code of {asked} is {answer}."
    question = task.question(asked)
    assert (question in prompt) == seen
    assert (question in text_of(trial.next_ids)) != seen
    assert INTRODUCTION in prompt


@given(task=tasks, number=st.integers(0, 50))
def test_the_rest_of_the_prompt_is_the_text_in_whole_sentences(task, number):
    trial = HAYSTACKS["plain"].trial(task, 2500, False, number)
    assert trial.prompt_ids[0] == 1  # the beginning that the tokenizer wants
    body = text_of(trial.prompt_ids[1:]).removeprefix(INTRODUCTION)
    rest = without_needles(body)
    assert rest.strip() in TEXT
    assert rest.startswith(" Sentence ")
    before = [body[: found.start()].rstrip() for found in NEEDLE.finditer(body)]
    assert all(text.endswith(".") or not text for text in before)


def test_a_chat_is_one_message_with_the_answer_begun():
    seen, unseen = (HAYSTACKS["chat"].trial(SINGLE, 2000, seen, 0) for seen in (True, False))
    whole = text_of(seen.prompt_ids + seen.next_ids)
    assert whole.startswith(f"<user>{INTRODUCTION}")
    assert re.search(r"in the text\?<end>\n<model>The special code of \w+ \w+ is$", whole)
    assert text_of(unseen.next_ids).startswith("\n\nWhat is the special code of ")
    assert text_of(unseen.next_ids).endswith(text_of(seen.next_ids))


@given(task=tasks, number=st.integers(0, 50), seed=st.integers(0, 5))
def test_trials_repeat_and_differ(task, number, seed):
    haystack = HAYSTACKS["plain"]
    trial = haystack.trial(task, 2200, False, number, seed)
    assert trial == haystack.trial(task, 2200, False, number, seed)
    assert trial.answers != haystack.trial(task, 2200, False, number + 1, seed).answers
    assert trial.answers != haystack.trial(task, 2200, False, number, seed + 1).answers
    seen = haystack.trial(task, 2200, True, number, seed)
    assert seen.answers == trial.answers
    texts = [without_needles(text_of(one.prompt_ids)) for one in (trial, seen)]
    assert texts[0][:400] == texts[1][:400]


def test_depths_spread_over_the_whole_prompt(haystack):
    starts = [haystack.trial(SINGLE, 2500, False, number).needles[0][0] for number in range(200)]
    tenths = np.histogram(starts, bins=10, range=(0, 2500))[0]
    assert (tenths > 5).all()


def test_tasks_are_rulers():
    assert list(TASKS.values()) == [SINGLE, MULTI_KEY, MULTI_VALUE]
    assert [(task.keys, task.values) for task in TASKS.values()] == [(1, 1), (4, 1), (1, 4)]


def test_what_cannot_be_hidden_is_refused(haystack):
    with pytest.raises(InputError, match="too short for its needles: pass a longer one"):
        haystack.trial(MULTI_KEY, 150, False, 0)
    with pytest.raises(InputError, match=r"the text has \d+ tokens, the prompt takes \d+ of it"):
        haystack.trial(SINGLE, 100_000, False, 0)
    with pytest.raises(InputError, match="empty: pass prose"):
        Haystack(Letters(), " \n")
    with pytest.raises(InputError, match="at most 24"):
        NeedleTask("many", keys=25)
    with pytest.raises(InputError, match="values of none"):
        NeedleTask("none", values=0)


def test_recall_is_a_string_match():
    trial = replace(HAYSTACKS["plain"].trial(MULTI_VALUE, 2000, False, 0), answers=("1234567", "7654321"))
    assert trial.recalled("they are 7654321, 1111111 and 1234567.") == 2
    assert trial.recalled("1234567 1234567") == 1
    assert trial.recalled("123 4567") == 0


def attempts_of(policy, full_solved, solved, task="single", seen=False, ratio=0.5, failed=3):
    """Attempts where the full cache fails some trials, and the policy solves some of the rest."""
    base = Attempt(task, seen, 0, policy, ratio, 0.5, 0.5, 1, 0)
    made = [replace(base, number=number, recalled=int(number < solved)) for number in range(full_solved)]
    full = [replace(base, number=number, policy=FULL, ratio=0.0) for number in range(full_solved + failed)]
    return made, [replace(one, recalled=int(one.number < full_solved)) for one in full]


def test_a_count_is_over_what_the_full_cache_solves():
    made, full = attempts_of("snapkv", 60, 12)
    (cell,) = count(full + made)
    assert (cell.trials, cell.full_solved, cell.solved, cell.share) == (63, 60, 12, 0.2)
    assert (cell.low, cell.high) == pytest.approx((0.1183, 0.3178), abs=1e-4)
    assert (cell.retained, cell.needle_retained) == (0.5, 0.5)


@pytest.mark.parametrize("full_solves", [True, False])
def test_policies_are_tried_only_where_the_full_cache_solves(monkeypatch, full_solves):
    trial = HAYSTACKS["plain"].trial(SINGLE, 2000, False, 7)
    keep = np.zeros((2, 1, 2000), bool)
    keep[0] = True
    mask = KeepMask(keep, metadata=MaskMetadata(ratio=0.5))

    def agreed(model, cache, given, ids, draft):
        assert (model, cache, tuple(ids.tolist())) == ("model", "cache", trial.next_ids)
        assert text_of(draft) == f" {trial.answers[0]}."
        return [ord(letter) for letter in (text_of(draft) + "\n" if given is None and full_solves else " 1")]

    def generate(model, cache, given, ids, limit, stop_ids):
        assert text_of(ids) == text_of(trial.next_ids) + " 1"
        assert (limit, stop_ids) == (trial.answer_tokens - 2, [])
        return [ord(letter) for letter in "2."]

    monkeypatch.setattr("kvreclaim.capture.quality.retrieval.agreed", agreed)
    monkeypatch.setattr("kvreclaim.capture.quality.retrieval.generate", generate)
    attempts = attempt("model", Letters(), "cache", trial, {"snapkv": mask})
    full = Attempt("single", False, 7, FULL, 0.0, 1.0, 1.0, 1, int(full_solves))
    tried = [Attempt("single", False, 7, "snapkv", 0.5, 0.5, 0.5, 1, 0)] if full_solves else []
    assert attempts == [full, *tried]


def test_a_partial_recall_is_no_solution():
    base = Attempt("multi-value", False, 0, "snapkv", 0.5, 0.5, 0.5, 4, 3)
    assert not base.solved and replace(base, recalled=4).solved


def cells_of(*counted):
    """Cells of policies from (policy, full solved, solved, further fields)."""
    attempts = []
    for policy, full_solved, solved, fields in counted:
        made, full = attempts_of(policy, full_solved, solved, **fields)
        attempts += made + full
    return count(attempts)


def test_only_intervals_apart_are_ranked():
    cells = cells_of(("a", 60, 55, {}), ("b", 60, 50, {}), ("c", 60, 5, {}))
    assert {(pair.better, pair.worse) for pair in separated(cells)} == {("a", "c"), ("b", "c")}


def test_few_trials_rank_nothing():
    cells = cells_of(("a", 49, 49, {}), ("b", 49, 0, {}))
    assert separated(cells) == []
    assert len(separated(cells, least_solved=49)) == 1


def test_other_tasks_and_ratios_are_not_compared():
    one = ("a", 60, 60, {})
    others = [{"task": "multi-key"}, {"seen": True}, {"ratio": 0.75}]
    assert not any(separated(cells_of(one, ("b", 60, 0, fields))) for fields in others)
    assert len(separated(cells_of(one, ("b", 60, 0, {})))) == 1


def test_smollm2_finds_needles_unless_they_are_evicted():
    model, tokenizer = smollm2()
    haystack, tokens, attempts = Haystack(tokenizer, prose()), 384, []
    for task in (SINGLE, MULTI_KEY):
        for number in range(3):
            trial = haystack.trial(task, tokens, False, number)
            cache = prefill(model, torch.tensor([trial.prompt_ids]))
            keep = np.ones((len(cache.layers), 3, tokens), bool)
            for start, end in trial.needles:
                keep[:, :, start:end] = False
            said = MaskMetadata(ratio=0.0)
            masks = {
                "all": KeepMask(np.ones_like(keep), metadata=said),
                "none": KeepMask(keep, metadata=said),
            }
            attempts += attempt(model, tokenizer, cache, trial, masks)
    cells = {(cell.task, cell.policy): cell for cell in count(attempts)}
    for task in ("single", "multi-key"):
        kept, lost = cells[task, "all"], cells[task, "none"]
        assert kept.trials == lost.trials == 3
        assert kept.solved == kept.full_solved == lost.full_solved >= 2
        assert lost.solved == 0
        assert (kept.needle_retained, lost.needle_retained) == (1, 0)
        assert kept.retained == 1 > lost.retained > 0.9
    assert separated(list(cells.values())) == []
