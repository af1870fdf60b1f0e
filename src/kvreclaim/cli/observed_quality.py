"""The quality of what a runtime was seen to keep: its masks, on the same model outside the runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvreclaim.keep import as_keep_mask
from kvreclaim.prompts import start_of
from kvreclaim.runtimes.observation import MASKS, Observation, Scenario, Spread


def with_kl(
    scenario: Scenario, observations: Sequence[Observation], report: Callable[[int], None]
) -> list[Observation]:
    """Return the observations, those that have masks with their KL.

    Parameters
    ----------
    scenario
        Whose prompts and model they are.
    observations
        Of that scenario.
    report
        Called with the number of prompts done.

    Raises
    ------
    InputError
        If transformers can't run the model or the masks don't fit it.
    """
    from kvreclaim.capture.models import load
    from kvreclaim.capture.quality.beside import kl_of_masks

    model, tokenizer = load(scenario.path)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))

    masks = {
        f"{run} {name}": [as_keep_mask(mask) for mask in seen.masks[name]]
        for run, seen in enumerate(observations)
        for name in MASKS
        if seen.masks
    }
    prompts = scenario.prompts(encode, start_of(tokenizer))
    found = kl_of_masks(
        model, [prompt.ids for prompt in prompts], [prompt.next_ids for prompt in prompts], masks, report
    )
    return [
        replace(seen, kl={name: Spread.of(found[f"{run} {name}"]) for name in MASKS}) if seen.masks else seen
        for run, seen in enumerate(observations)
    ]
