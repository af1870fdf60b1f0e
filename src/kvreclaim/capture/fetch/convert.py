"""A GGUF file into a Hugging Face model directory."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import torch
import transformers

from kvreclaim.capture.fetch.tokenizers import tokenizer_of
from kvreclaim.capture.inside.quiet import quiet_transformers


def convert_gguf(gguf: Path, directory: Path) -> None:
    """Write a GGUF file's model to ``directory`` in float32, its tokenizer built from the metadata."""
    # The bar over the tensors of a GGUF file obeys none of transformers' switches.
    with quiet_transformers(), redirect_stderr(StringIO()):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        model.save_pretrained(directory)
    tokenizer_of(gguf).save_pretrained(directory)
