"""How the plugin comes into vLLM, and what it refuses there."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from observed import MODEL

from kvreclaim.errors import InputError
from kvreclaim.keep import KeepMask, save_keep_masks
from kvreclaim.runtimes.vllm import versions
from kvreclaim.runtimes.vllm.options import Options, prompt_name
from kvreclaim.scores.centres_file import CentresFile

LOOK = """
from vllm.plugins import load_general_plugins
load_general_plugins()
import importlib.metadata, json, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
found = [EngineArgs.create_engine_config, Executor.initialize_from_config]
found += [Scheduler.__init__, EngineCore.step]
names = [point.name for point in importlib.metadata.entry_points(group="vllm.general_plugins")]
patched = [hasattr(one, "kvreclaim_original") for one in found]
patched.append(AttentionBackendEnum.CPU_ATTN.is_overridden())
ours = sorted(name for name in sys.modules if name.startswith("kvreclaim.runtimes.vllm."))
print(json.dumps(["kvreclaim" in names, patched, ours]))
"""

PLAIN = """
import json, sys
from vllm import LLM, SamplingParams
model, prompts = json.load(sys.stdin)
llm = LLM(model=model, dtype="float32", block_size=32, max_model_len=1024, max_num_batched_tokens=1024,
          num_gpu_blocks_override=41, max_num_seqs=16, enforce_eager=True, enable_prefix_caching=False,
          async_scheduling=False)
sampling = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
print(json.dumps([list(output.outputs[0].token_ids) for output in outputs]))
"""


def in_a_process(code, given="", option=None):
    environment = {name: value for name, value in os.environ.items() if name != "KVRECLAIM_VLLM"}
    environment |= {} if option is None else {"KVRECLAIM_VLLM": option}
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=given,
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_without_the_option_vllm_is_untouched():
    found, patched, ours = in_a_process(LOOK)
    assert found, "vLLM does not find the entry point"
    assert not any(patched)
    assert ours == ["kvreclaim.runtimes.vllm.plugin"]


def test_with_the_option_all_patches_are_there():
    _, patched, _ = in_a_process(LOOK, option='{"policy": "knorm", "budget": 9}')
    assert all(patched)


def test_with_everything_kept_vllm_says_what_it_says_without(engine, prompts):
    plain = in_a_process(PLAIN, json.dumps([str(MODEL), prompts]))
    for options in (Options("none"), Options("h2o", 900, buffer=8), Options("snapkv", 900, "mask", buffer=8)):
        run = engine.run(prompts, options, 48)
        assert not run.evictions
        assert [list(output.output_tokens) for output in run.outputs] == plain


def test_a_mask_from_a_file_is_what_attention_sees(engine, prompts, tmp_path):
    generator = np.random.default_rng(0)
    masks = []
    for prompt in prompts[:2]:
        keep = generator.random((30, 3, len(prompt))) < 0.4
        keep[..., -1] = True
        masks.append(KeepMask(keep, prompt_name(prompt)))
    file = tmp_path / "masks.npz"
    save_keep_masks(file, masks)
    options = Options("keep-mask", masks=str(file), record_masks=True)
    for mode in ("pack", "mask"):
        run = engine.run(prompts, replace(options, mode=mode), 3)
        by_tokens = {record.computed_tokens: record for record in run.evictions}
        for prompt, mask in zip(prompts, masks, strict=False):
            assert np.array_equal(by_tokens[len(prompt)].effective, mask.array)
            assert np.array_equal(by_tokens[len(prompt)].asked, mask.array)
        without = by_tokens[len(prompts[2])]  # no mask is named after it: it stays whole
        assert without.kept == without.tokens


def test_masks_of_another_model_are_refused(engine, tmp_path):
    file = tmp_path / "masks.npz"
    save_keep_masks(file, [KeepMask(np.ones((2, 3, 50), np.bool_), "other")])
    with pytest.raises(InputError, match="2 layers and 3 KV heads, the model 30 and 3"):
        engine.configure(Options("keep-mask", masks=str(file)))
    with pytest.raises(InputError, match="2 layers and 3 KV heads, the model 30 and 3"):
        configured(Options("keep-mask", masks=str(file)))


def test_query_centres_of_another_model_are_refused_before_the_engine_is_made(tmp_path):
    file = tmp_path / "centres.npz"
    parts = [np.ones(shape, np.float32) for shape in ((2, 9, 64), (2, 9, 32), (32,))]
    CentresFile(*parts).save(file)
    with pytest.raises(InputError, match=r"query centres of \(2, 9, 64\), the model \(30, 9, 64\)"):
        configured(Options("triattention", 200, centres=str(file)))


def configured(options, **arguments):
    """Make an engine's configuration with the option set, and no engine."""
    from vllm.engine.arg_utils import EngineArgs

    from kvreclaim.runtimes.vllm.plugin import register

    os.environ["KVRECLAIM_VLLM"] = options.as_json()
    try:
        register()
        settings = {"model": str(MODEL), "max_model_len": 1024, "enforce_eager": True, **arguments}
        return EngineArgs(**settings).create_engine_config()
    finally:
        del os.environ["KVRECLAIM_VLLM"]


KNORM = Options("knorm", 128)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"enable_prefix_caching": True}, "prefix caching"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size=1"),
        ({"worker_extension_cls": "somebody.Else"}, "worker_extension_cls"),
        ({"enforce_eager": False}, "enforce_eager=True"),
        ({"block_size": 16}, "multiple of 32"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_an_engine_may_not_have(arguments, says):
    with pytest.raises(InputError, match=says) as refusal:
        configured(KNORM, **arguments)
    assert "\n" not in str(refusal.value)


def test_what_is_left_open_is_filled_in():
    config = configured(KNORM)
    assert not config.cache_config.enable_prefix_caching
    assert not config.scheduler_config.async_scheduling
    with pytest.raises(InputError, match="never exceeded"):
        configured(replace(KNORM, budget=1024))


def test_other_versions_are_refused(monkeypatch):
    monkeypatch.setattr(versions, "SUPPORTED", ("0.1.0",))
    with pytest.raises(InputError, match=r"vLLM 0\.32\.0 is not supported: install one of 0\.1\.0"):
        configured(KNORM)


def test_tables_and_metrics(engine, prompts, tmp_path):
    from prometheus_client import REGISTRY

    from kvreclaim.runtimes.vllm.metrics import export

    run = engine.run(prompts, Options("knorm", 64, records=str(tmp_path), buffer=4), 12)
    steps = (tmp_path / "steps-000.csv").read_text().splitlines()
    evictions = (tmp_path / "evictions-000.csv").read_text().splitlines()
    assert (len(steps), len(evictions)) == (len(run.steps) + 1, len(run.evictions) + 1)
    assert not list(tmp_path.glob(".*"))
    export(str(tmp_path))
    read = REGISTRY.get_sample_value
    assert read("kvreclaim_blocks_freed_total") == run.blocks_freed > 0
    assert read("kvreclaim_pairs_moved_total") == sum(record.moved_pairs for record in run.evictions)
    assert read("kvreclaim_evict_seconds_count") == len(run.evictions)
    took = sum(record.seconds + record.score_seconds for record in run.evictions)
    assert read("kvreclaim_evict_seconds_sum") == pytest.approx(took)


def test_options_that_are_refused_change_nothing(engine, prompts, tmp_path):
    file, alien = tmp_path / "masks.npz", tmp_path / "alien.npz"
    keep = np.ones((30, 3, len(prompts[2])), np.bool_)
    keep[..., :40] = False
    save_keep_masks(file, [KeepMask(keep, "whole")])
    save_keep_masks(alien, [KeepMask(np.ones((2, 3, 50), np.bool_), "other")])
    engine.configure(Options("keep-mask", masks=str(file)))
    with pytest.raises(InputError, match="2 layers and 3 KV heads"):
        engine.configure(Options("keep-mask", masks=str(alien)))
    with pytest.raises(InputError):
        engine.configure(Options("snapkv", 128, records="/proc/none"))
    from vllm import SamplingParams

    engine.llm.generate([{"prompt_token_ids": prompts[2]}], SamplingParams(max_tokens=2), use_tqdm=False)
    half = engine.llm.llm_engine.engine_core.engine_core.scheduler.kvreclaim
    assert half._options.policy == "keep-mask"
    assert engine.free_blocks() == engine.pool_blocks


@pytest.mark.parametrize(
    ("prompt", "count", "says"),
    [
        ([1] * 1020, 10, "are 1030: pass at most 1024"),
        ([1, -2], 2, "no token id: pass whole numbers below"),
        ([1, 10**7], 2, "no token id"),
        (["a"], 2, "no token id"),
        ([], 2, "none of them empty"),
    ],
    ids=["long", "negative", "large", "text", "empty"],
)
def test_prompts_that_can_t_run_are_refused_before_any_is_queued(engine, prompts, prompt, count, says):
    with pytest.raises(InputError, match=says):
        engine.run([prompts[2], prompt], Options("none"), count)
    assert not engine.llm.llm_engine.has_unfinished_requests()


def test_a_run_that_fails_leaves_an_engine_at_rest(engine, prompts):
    def fail(step, _):
        if step == 2:
            raise KeyError("of the caller")

    with pytest.raises(KeyError):
        engine.run(prompts[:2], KNORM, 8, after_step=fail)
    assert engine.free_blocks() == engine.pool_blocks
    assert engine.run(prompts[2:], KNORM, 3).free_blocks_end == engine.pool_blocks


def test_what_vllm_itself_refuses_is_one_line():
    from kvreclaim.runtimes.vllm.engine import Engine

    for model, settings in (("/nope", {}), (str(MODEL), {"max_model_len": 10**6})):
        with pytest.raises(InputError, match=r"^vLLM refuses .* or the settings: .") as refusal:
            Engine(model, pool_blocks=9, **settings)
        assert "\n" not in str(refusal.value)
