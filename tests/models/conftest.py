"""A tiny model and a folder measured on it, made once for all tests; no test changes them."""

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A tiny Llama as a directory, and a text of its words."""
    import tiny_model
    from small_models import tiny_llama

    folder = tmp_path_factory.mktemp("tiny")
    (folder / "text").write_text(tiny_model.text(3000))
    return tiny_model.save(tiny_llama(), folder / "llama"), folder / "text"


@pytest.fixture(scope="session")
def folder(tiny, tmp_path_factory):
    """A results folder of one process."""
    from tiny_measure import settings

    from kvreclaim.capture.measure.run import measure

    out = tmp_path_factory.mktemp("measured") / "one"
    measure(settings(tiny), out)
    return out
