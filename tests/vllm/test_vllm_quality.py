"""The KL of what a runtime kept, against Hugging Face with the same pairs hidden."""

from dataclasses import replace

import numpy as np
import pytest
from observed import MODEL

from kvreclaim.runtimes.observation import Scenario
from kvreclaim.runtimes.vllm.options import Options

SCENARIO = Scenario("smollm2-135m", requests=3, prompt_tokens=150, max_tokens=8, directory=str(MODEL))


def test_kl_of_what_was_asked_and_of_what_attention_saw(engine, reference):
    from kvreclaim.cli.observed_quality import with_kl
    from kvreclaim.runtimes.in_vllm import observe_run

    tokenizer = engine.llm.get_tokenizer()

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False, verbose=False)

    cut = SCENARIO.prompts(encode)
    prompts, following = [prompt.ids for prompt in cut], [prompt.next_ids for prompt in cut]
    limits = replace(SCENARIO, pool_blocks=engine.pool_blocks).settings
    chosen = [Options("none"), Options("snapkv", 70, "pack"), Options("streaming-llm", 30, "free")]
    runs = [observe_run(engine, prompts, options, SCENARIO.max_tokens, limits) for options in chosen]
    full, packed, freed = with_kl(SCENARIO, runs, lambda _: None)
    assert full.kl is None
    assert packed.kl["asked"] == packed.kl["effective"]
    assert not np.array_equal(freed.masks["asked"], freed.masks["effective"])
    for seen, name in ((packed, "effective"), (freed, "asked"), (freed, "effective")):
        expected = []
        for prompt, after, mask in zip(prompts, following, seen.masks[name], strict=True):
            whole, left = reference.says(prompt, after).double(), reference.says(prompt, after, mask).double()
            expected.append(float((whole.exp() * (whole - left)).sum(-1).mean()))
        spread = seen.kl[name]
        assert spread.count == 3
        assert spread.median == pytest.approx(np.median(expected), rel=1e-3)
        assert (spread.low, spread.high) == (
            pytest.approx(min(expected), rel=1e-3),
            pytest.approx(max(expected), rel=1e-3),
        )
