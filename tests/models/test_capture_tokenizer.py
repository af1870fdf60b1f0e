"""Tokenizers from GGUF metadata: SmolLM2's against what the model says, SentencePiece's by brute force."""

from itertools import pairwise

import pytest
from small_models import prose, prose_ids, smollm2, torch

pytest.importorskip("gguf", reason="needs the extra: pip install 'kvreclaim[models]'")

from kvreclaim.capture.fetch.tokenizers import merges_by_score


def test_the_capital_of_france():
    model, tokenizer = smollm2()
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        assert tokenizer.decode(model(ids).logits[0, -1].argmax()) == " Paris"


def test_prose_is_no_surprise():
    model, _ = smollm2()
    ids = prose_ids(3072)[:, 1024:]
    with torch.no_grad():
        assert 2.5 < float(model(ids, labels=ids).loss) < 3.2


@pytest.mark.parametrize(
    "text",
    [
        "  two  spaces\n\nand\ttabs ",
        "1234567890",
        "naïve 日本 🙂",
        "don't I'll",
        "<|im_start|>user\nhi<|im_end|>",
    ],
)
def test_text_comes_back(text):
    _, tokenizer = smollm2()
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_tokens_of_smollm2():
    _, tokenizer = smollm2()
    assert tokenizer.eos_token_id == 2
    assert len(tokenizer("12345").input_ids) == 5  # digits stand alone
    assert tokenizer("<|im_start|>").input_ids == [1]
    assert tokenizer("hello").input_ids == tokenizer("hello", add_special_tokens=False).input_ids
    assert len(tokenizer(prose()[:20_000]).input_ids) < 20_000 / 3.5


def test_merges_are_those_of_sentencepiece():
    """Brute force: join the pair whose join scores best, the leftmost of equals, while there is one."""
    from tokenizers import Tokenizer, models

    pieces = ["a", "b", "c", "ab", "bc", "abc", "ca", "aa", "bca", "cab", "abca"]
    scores = [0, 0, 0, -3, -1, -5, -2, -4, -7, -6, -8]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges_by_score(vocabulary, scores)))

    def brute(text):
        parts = list(text)
        while True:
            joins = [one + two for one, two in pairwise(parts)]
            known = [place for place, join in enumerate(joins) if join in vocabulary]
            if not known:
                return parts
            best = max(known, key=lambda place: (scores[vocabulary[joins[place]]], -place))
            parts[best : best + 2] = [joins[best]]

    for text in ("abc", "aabca", "cabcab", "bcabcaabc", "abcabcabc", "caab"):
        assert tokenizer.encode(text).tokens == brute(text)
