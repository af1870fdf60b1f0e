"""Tiny random models as directories, with a tokenizer whose words are numbers, and a text for them."""

import numpy as np

WORDS = 97


def save(model, folder):
    """Write a model of `small_models` with its tokenizer as a Hugging Face directory; return the path."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    vocabulary = {str(word): word for word in range(WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="0"))  # noqa: S106  # a word
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


def text(words, seed=0):
    """Return a text of so many words."""
    return " ".join(map(str, np.random.default_rng(seed).integers(WORDS, size=words)))


def llama():
    """Return a random Llama of 3 layers and 2 KV heads, 256 tokens of context."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    return transformers.LlamaForCausalLM(config)
