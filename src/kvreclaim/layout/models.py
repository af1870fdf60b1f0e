"""KV geometry of well-known models, as their config.json on the Hugging Face Hub gives it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from kvreclaim.errors import InputError
from kvreclaim.layout.config import geometry_from_config
from kvreclaim.layout.geometry import KVGeometry, sliding_windows


@dataclass(frozen=True)
class KnownModel:
    """A model's KV geometry and where it was taken from.

    Parameters
    ----------
    geometry
        Its KV geometry; its name is the name to look the model up by.
    hub_ids
        Repositories on the Hugging Face Hub with this geometry. The first is the source.
    """

    geometry: KVGeometry
    hub_ids: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name to look the model up by."""
        return self.geometry.name

    @property
    def source(self) -> str:
        """The file on the Hugging Face Hub that the numbers come from."""
        return f"{self.hub_ids[0]}/config.json"


def model(name_or_path: str | PathLike[str]) -> KVGeometry:
    """Return the KV geometry of a known model, or the one that a config.json describes.

    Parameters
    ----------
    name_or_path
        A name from ``models()`` or its id on the Hugging Face Hub, in any case; else the path of a
        config.json or of a model directory.

    Raises
    ------
    InputError
        If it is neither, or the config cannot be used (see ``geometry_from_config``).
    """
    text = fspath(name_or_path)
    known = _BY_NAME.get(text.lower())
    if known is not None:
        return known.geometry
    if not Path(text).exists():
        names = ", ".join(entry.name for entry in _MODELS)
        raise InputError(f"unknown model {text!r}: pass a config.json, a model directory, or one of {names}")
    return geometry_from_config(text)


def models() -> tuple[KnownModel, ...]:
    """Return the known models."""
    return _MODELS


_MODELS = (
    KnownModel(
        KVGeometry("llama-2-7b", 32, 32, 128, "float16"),
        ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b-chat-hf"),
    ),
    KnownModel(
        KVGeometry("llama-2-13b", 40, 40, 128, "float16"),
        ("meta-llama/Llama-2-13b-hf", "meta-llama/Llama-2-13b-chat-hf"),
    ),
    KnownModel(
        KVGeometry("llama-2-70b", 80, 8, 128, "float16"),
        ("meta-llama/Llama-2-70b-hf", "meta-llama/Llama-2-70b-chat-hf"),
    ),
    KnownModel(
        KVGeometry("llama-3-8b", 32, 8, 128),
        ("meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B-Instruct"),
    ),
    KnownModel(
        KVGeometry("llama-3-70b", 80, 8, 128),
        ("meta-llama/Meta-Llama-3-70B", "meta-llama/Meta-Llama-3-70B-Instruct"),
    ),
    KnownModel(
        KVGeometry("llama-3.1-8b", 32, 8, 128),
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"),
    ),
    KnownModel(
        KVGeometry("llama-3.1-70b", 80, 8, 128),
        ("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct"),
    ),
    KnownModel(
        KVGeometry("llama-3.1-405b", 126, 8, 128),
        ("meta-llama/Llama-3.1-405B", "meta-llama/Llama-3.1-405B-Instruct"),
    ),
    KnownModel(
        KVGeometry("llama-3.2-1b", 16, 8, 64),
        ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"),
    ),
    KnownModel(
        KVGeometry("llama-3.2-3b", 28, 8, 128),
        ("meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.2-3B-Instruct"),
    ),
    KnownModel(KVGeometry("opt-13b", 40, 40, 128, "float16"), ("facebook/opt-13b",)),
    KnownModel(KVGeometry("yi-6b", 32, 4, 128), ("01-ai/Yi-6B", "01-ai/Yi-6B-Chat")),
    KnownModel(KVGeometry("falcon-7b", 32, 1, 64), ("tiiuae/falcon-7b", "tiiuae/falcon-7b-instruct")),
    KnownModel(
        KVGeometry("mistral-7b", 32, 8, 128, windows=sliding_windows(32, 4096)),
        ("mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-Instruct-v0.1"),
    ),
    KnownModel(
        KVGeometry("mistral-7b-v0.3", 32, 8, 128),
        ("mistralai/Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"),
    ),
    KnownModel(
        KVGeometry("mixtral-8x7b", 32, 8, 128),
        ("mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    ),
    KnownModel(
        KVGeometry("phi-3-mini", 32, 32, 96, windows=sliding_windows(32, 2047)),
        ("microsoft/Phi-3-mini-4k-instruct",),
    ),
    KnownModel(KVGeometry("qwen2.5-0.5b", 24, 2, 64), ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-Instruct")),
    KnownModel(KVGeometry("qwen2.5-7b", 28, 4, 128), ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct")),
    KnownModel(
        KVGeometry("qwen2.5-math-7b", 28, 4, 128), ("Qwen/Qwen2.5-Math-7B", "Qwen/Qwen2.5-Math-7B-Instruct")
    ),
    KnownModel(KVGeometry("qwen3-0.6b", 28, 8, 128), ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B-Base")),
    KnownModel(KVGeometry("qwen3-4b", 36, 8, 128), ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B-Base")),
    KnownModel(KVGeometry("qwen3-8b", 36, 8, 128), ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base")),
    KnownModel(KVGeometry("qwen3-14b", 40, 8, 128), ("Qwen/Qwen3-14B", "Qwen/Qwen3-14B-Base")),
    KnownModel(KVGeometry("qwen3-32b", 64, 8, 128), ("Qwen/Qwen3-32B",)),
    KnownModel(
        KVGeometry("gemma-2-9b", 42, 8, 256, windows=sliding_windows(42, 4096, full_every=2)),
        ("google/gemma-2-9b-it", "google/gemma-2-9b"),
    ),
    KnownModel(
        KVGeometry("gemma-3-270m", 18, 1, 256, windows=sliding_windows(18, 512, full_every=6)),
        ("google/gemma-3-270m", "google/gemma-3-270m-it"),
    ),
    KnownModel(
        KVGeometry("gpt-oss-20b", 24, 8, 64, windows=sliding_windows(24, 128, full_every=2)),
        ("openai/gpt-oss-20b",),
    ),
    KnownModel(
        KVGeometry("smollm2-135m", 30, 3, 64),
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    ),
    KnownModel(
        KVGeometry("smollm2-360m", 32, 5, 64),
        ("HuggingFaceTB/SmolLM2-360M", "HuggingFaceTB/SmolLM2-360M-Instruct"),
    ),
)
_BY_NAME = {name.lower(): entry for entry in _MODELS for name in (entry.name, *entry.hub_ids)}
