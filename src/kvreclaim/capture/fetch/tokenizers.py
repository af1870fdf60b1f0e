"""A tokenizer from the metadata of a GGUF file.

The tokenizer that transformers converts from such a file is wrong for the models here, and silently so: for
SmolLM2 the end-of-sequence token, or every space, is another token; Gemma falls to single characters. The
file's own vocabulary, merges, scores and token kinds are enough to build the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from kvreclaim.errors import InputError

_SPACE = "\u2581"  # SentencePiece writes a space so


def tokenizer_of(gguf: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer that a GGUF file describes.

    Two kinds are known: byte-level BPE with single digits (``gpt2``, pre-tokenizer ``smollm``), and
    SentencePiece BPE by scores with byte fallback (``llama``: Gemma).

    Raises
    ------
    InputError
        If the file's tokenizer is of another kind.
    """
    metadata = Metadata(gguf)
    kind = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
    builders = {("gpt2", "smollm"): _byte_level, ("llama", "default"): _sentence_piece}
    if kind not in builders:
        raise InputError(
            f"{gguf.name}: no rule for a tokenizer of kind {kind[0]}, {kind[1]}; pass another model"
        )
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"]
    tokenizer = builders[kind](metadata, tokens)
    tokenizer.add_special_tokens(
        [_whole(t) for t, k in zip(tokens, kinds, strict=True) if k == TokenType.CONTROL]
    )
    tokenizer.add_tokens(
        [
            _whole(t)
            for t, k in zip(tokens, kinds, strict=True)
            if k == TokenType.USER_DEFINED and _SPACE not in t  # runs of spaces come out of the merges
        ]
    )
    return _as_pretrained(tokenizer, metadata, tokens)


class Metadata:
    """The key-value pairs of a GGUF file."""

    def __init__(self, gguf: Path) -> None:
        self._fields = GGUFReader(gguf).fields

    def __getitem__(self, key: str) -> Any:
        return self._fields[key].contents()

    def get(self, key: str) -> Any:
        """Return a value, None if the file does not have it."""
        return self[key] if key in self._fields else None


def _byte_level(metadata: Metadata, tokens: Sequence[str]) -> Tokenizer:
    merges = [
        (left, right) for left, _, right in (m.partition(" ") for m in metadata["tokenizer.ggml.merges"])
    ]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(metadata: Metadata, tokens: Sequence[str]) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    unknown = tokens[metadata["tokenizer.ggml.unknown_token_id"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges_by_score(vocabulary, metadata["tokenizer.ggml.scores"]),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    if metadata.get("tokenizer.ggml.add_bos_token"):
        start = tokens[metadata["tokenizer.ggml.bos_token_id"]]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A {start} $B", special_tokens=[(start, vocabulary[start])]
        )
    return tokenizer


def merges_by_score(vocabulary: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return SentencePiece's merges: any two pieces whose join is a piece, the best join first."""
    merges = []
    for piece, place in vocabulary.items():
        splits = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = [(left, right) for left, right in splits if left in vocabulary and right in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(-scores[place], pair) for pair in known]
    return [pair for _, pair in sorted(merges, key=lambda merge: merge[0])]


def _whole(token: str) -> AddedToken:
    """Return the token as one that is cut out of a text before anything else is done to it."""
    return AddedToken(token, normalized=False)


def _as_pretrained(
    tokenizer: Tokenizer, metadata: Metadata, tokens: Sequence[str]
) -> PreTrainedTokenizerFast:
    def special(role: str) -> str | None:
        place = metadata.get(f"tokenizer.ggml.{role}_token_id")
        return None if place is None else tokens[place]

    kind: Any = PreTrainedTokenizerFast  # whose constructor is untyped
    wrapped: PreTrainedTokenizerFast = kind(
        tokenizer_object=tokenizer,
        bos_token=special("bos"),
        eos_token=special("eos"),
        pad_token=special("padding"),
        unk_token=special("unknown"),
        clean_up_tokenization_spaces=False,
        model_max_length=metadata[f"{metadata['general.architecture']}.context_length"],
    )
    wrapped.chat_template = metadata.get("tokenizer.chat_template")
    return wrapped
