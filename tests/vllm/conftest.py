"""One engine for all tests that need one, and a Hugging Face model to hold it to.

Skipped where vLLM or the model is missing; `make test-vllm` brings both. With KVRECLAIM_REQUIRE_VLLM=1 in the
environment that is a failure.
"""

import json
import os
from pathlib import Path

import pytest
from observed import MODEL

from kvreclaim.runtimes.vllm.versions import SUPPORTED, installed_version

POOL = 40
BLOCK = 32


def _missing():
    if installed_version() not in SUPPORTED:
        return f"vLLM {', '.join(SUPPORTED)} is not installed: make test-vllm"
    return None if MODEL.is_dir() else f"no model in {MODEL}: kvreclaim models fetch smollm2-135m"


def pytest_collection_modifyitems(items):
    missing = _missing()
    if missing is not None and os.environ.get("KVRECLAIM_REQUIRE_VLLM") == "1":
        raise pytest.UsageError(missing)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))  # those of vLLM and torch are not ours
            if missing is not None:
                item.add_marker(pytest.mark.skip(reason=missing))


TIES = pytest.StashKey()


def pytest_configure(config):
    config.stash[TIES] = {}


def pytest_terminal_summary(terminalreporter, config):
    if counted := config.stash[TIES]:
        parted, requests = (sum(numbers) for numbers in zip(*counted.values(), strict=True))
        names = [name for name, (parting, _) in counted.items() if parting]
        terminalreporter.write_line(
            f"vLLM and Hugging Face: {parted} of {requests} requests part, all at margins under 0.001"
            + (f": {', '.join(names)}" if names else "")
        )


@pytest.fixture(scope="session")
def ties(pytestconfig):
    """Requests that part from the reference at a tie, and all of them, by case."""
    return pytestconfig.stash[TIES]


@pytest.fixture(scope="session")
def engine():
    from kvreclaim.runtimes.vllm.engine import Engine

    with Engine(str(MODEL), pool_blocks=POOL, block_size=BLOCK) as made:
        yield made


@pytest.fixture(scope="session")
def reference():
    from vllm_reference import Reference

    return Reference(MODEL)


@pytest.fixture(scope="session")
def centres(reference, prompts, tmp_path_factory):
    """The file that ``calibrate queries`` would write, but for its text: the longest of the prompts."""
    from kvreclaim.scores.centres_file import CentresFile

    file = tmp_path_factory.mktemp("centres") / "centres.npz"
    CentresFile(*(part.numpy() for part in reference.centres(prompts[0]))).save(file)
    return str(file)


@pytest.fixture(scope="session")
def prompts():
    """Token ids of three texts of different kind, of 518, 265 and 153 tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    texts = json.loads((Path(__file__).parent / "texts.json").read_text())
    return [tokenizer(text).input_ids for text in texts]
