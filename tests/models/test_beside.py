"""The harm of masks that came from elsewhere is that of masks which a prefill recorded."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'kvreclaim[models]'")

import numpy as np  # noqa: E402
from small_models import tiny_llama  # noqa: E402

from kvreclaim import InputError, KeepMask  # noqa: E402


def test_each_prompt_is_judged_by_each_of_its_masks():
    from transformers import DynamicCache

    from kvreclaim.capture.quality.beside import kl_of_masks
    from kvreclaim.capture.quality.figures import quality

    model, generator = tiny_llama(), np.random.default_rng(0)
    shape = (model.config.num_hidden_layers, model.config.num_key_value_heads)
    prompts = [generator.integers(0, 60, length).tolist() for length in (12, 20)]
    following = [generator.integers(0, 60, 5).tolist() for _ in prompts]
    some = [KeepMask(generator.random((*shape, len(prompt))) < 0.5, "some") for prompt in prompts]
    whole = [KeepMask(np.ones((*shape, len(prompt)), np.bool_), "all") for prompt in prompts]
    done = []
    found = kl_of_masks(model, prompts, following, {"some": some, "all": whole}, done.append)
    assert found["all"] == [0.0, 0.0]
    assert done == [1, 2]
    for prompt, after, mask, kl in zip(prompts, following, some, found["some"], strict=True):
        cache = DynamicCache()
        with torch.no_grad():
            model(input_ids=torch.tensor([prompt]), past_key_values=cache, use_cache=True)
        assert kl == pytest.approx(quality(model, cache, mask, torch.tensor(after)).kl, rel=1e-5)
        assert kl > 0
    with pytest.raises(InputError, match="some has 1 masks for 2 prompts: pass one for each"):
        kl_of_masks(model, prompts, following, {"some": some[:1]})
