"""What ``kvreclaim observe`` refuses before vLLM starts; no vLLM is needed to be told."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import call, refused

from kvreclaim.errors import InputError
from kvreclaim.runtimes import before_vllm, in_vllm
from kvreclaim.runtimes.observation import Scenario
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.scores.centres_file import CentresFile

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


def centres(layers=2, heads=3, head_dim=4):
    """Write query centres of a model of such a shape."""
    half = head_dim // 2
    parts = [np.ones((layers, heads, head_dim)), np.ones((layers, heads, half)), np.ones(half)]
    CentresFile(*(part.astype(np.float32) for part in parts)).save("centres.npz")


TRIATTENTION = [
    ("--policy", "triattention:recent=8", "--budget", 64),
    ("--policy", "knorm", "--policy", "token-joint:recent=8:triattention:recent=8", "--budget", 80),
]


def model(**config):
    """Write the config, and nothing else, of a model of 2 layers, 3 query heads and 4 dimensions."""
    Path("here").mkdir()
    shape = {"num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 12}
    Path("here/config.json").write_text(json.dumps({"model_type": "llama", **shape, **config}))


@pytest.mark.usefixtures("never_started")
@pytest.mark.parametrize("policy", TRIATTENTION, ids=["triattention", "token-joint"])
@pytest.mark.parametrize("shape", [(3, 3, 4), (2, 1, 4), (2, 3, 8)], ids=["layers", "heads", "head_dim"])
def test_query_centres_of_another_model_are_refused(policy, shape):
    model()
    centres(*shape)
    refused(
        call("observe", *SMALL, *policy, "--centres", "centres.npz"),
        f"centres.npz has query centres of {shape}, the model (2, 3, 4): calibrate it",
    )
    assert not Path("observed").exists()


@pytest.mark.usefixtures("never_started")
@pytest.mark.parametrize(("config", "head_dim"), [({}, 4), ({"head_dim": 8}, 8)], ids=["by size", "said"])
def test_query_centres_of_the_model_get_as_far_as_the_engine(config, head_dim):
    model(**config)
    centres(head_dim=head_dim)
    options = Options("triattention", budget=64, window=8, centres="centres.npz")
    with pytest.raises(pytest.fail.Exception, match="an engine was made"):
        in_vllm.observe(Scenario("here"), [options])


@pytest.mark.usefixtures("never_started")
def test_query_centres_of_a_model_that_is_not_there():
    centres()
    answer = call("observe", *SMALL, *TRIATTENTION[0], "--centres", "centres.npz")
    refused(answer, "here has no config (", "pass a model's folder, or a name of kvreclaim models list")


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
