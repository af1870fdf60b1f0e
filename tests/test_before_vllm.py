"""What ``kvreclaim observe`` refuses before vLLM starts; no vLLM is needed to be told."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import call, refused

from kvreclaim.errors import InputError
from kvreclaim.runtimes import before_vllm, in_vllm
from kvreclaim.runtimes.observation import Scenario
from kvreclaim.runtimes.vllm.options import Options

SMALL = ("--model", "here", "--pool-blocks", 10, "--requests", 3, "--prompt-tokens", 140, "--max-tokens", 8)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def never_started(monkeypatch):
    """An engine that may not be made, on a machine that has vLLM and a tokenizer of letters."""

    class Letters:
        bos_token_id = None

        def encode(self, text, **_):
            return [ord(letter) for letter in text]

    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(transformers, "AutoTokenizer", SimpleNamespace(from_pretrained=lambda _: Letters()))
    monkeypatch.setattr(before_vllm, "set_environment", lambda: None)
    monkeypatch.setattr(in_vllm, "check_version", lambda: None)
    monkeypatch.setattr(in_vllm, "Engine", lambda *_, **__: pytest.fail("an engine was made"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--block-size", 16), ("block_size 16", "multiple of 32")),
        (("--block-size", 16, "--policy", "snapkv", "--budget", 70), ("block_size 16", "multiple of 32")),
        (("--budget", 148, "--policy", "knorm"), ("budget 148 is never exceeded", "148 tokens")),
        (("--budget", 126, "--policy", "block-joint"), ("may have to keep 127 pairs", "budget is 126")),
        (("--budget", 64, "--policy", "block-joint:recent=32:tova"), ("keep 95 pairs", "budget is 64")),
        (("--budget", 20, "--policy", "paged-eviction"), ("keep 32 pairs", "budget is 20")),
        (("--budget", 60, "--policy", "token-joint:recent=8:tova", "--mode", "compact"), ("not predicted",)),
        (
            ("--budget", 60, "--policy", "knorm", "--max-num-batched-tokens", 8),
            ("max_num_batched_tokens is 8", "max_num_seqs 16"),
        ),
    ],
)
def test_what_vllm_would_refuse_is_refused_before_it_starts(options, words):
    refused(call("observe", *SMALL, *options), *words)
    assert not Path("observed").exists()


def test_a_file_that_holds_no_centres_is_refused():
    np.savez("masks.npz", keep=np.ones((1, 1, 3), bool))
    policy = ("--policy", "triattention:recent=8", "--centres", "masks.npz", "--budget", 64)
    refused(call("observe", *SMALL, *policy), "masks.npz", "kvreclaim calibrate queries")


@pytest.mark.usefixtures("never_started")
def test_more_requests_than_the_text_has_prompts_for():
    refused(
        call("observe", *SMALL, "--policy", "knorm", "--budget", 64, "--requests", 100_000),
        "of 100000 prompts of 140 tokens",
        "fewer prompts",
    )
    assert not Path("observed").exists()


def test_a_model_without_a_tokenizer(monkeypatch):
    def nothing(_):
        raise OSError("no file in here\nand more")

    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(transformers, "AutoTokenizer", SimpleNamespace(from_pretrained=nothing))
    monkeypatch.setattr(before_vllm, "set_environment", lambda: None)
    with pytest.raises(InputError, match=r"^here has no tokenizer \(no file in here\): pass"):
        before_vllm.prompts_of(Scenario("here"))


@pytest.mark.usefixtures("never_started")
def test_what_fits_gets_as_far_as_the_engine():
    with pytest.raises(pytest.fail.Exception, match="an engine was made"):
        in_vllm.observe(Scenario("here"), [Options("snapkv", budget=128)])
