"""An observed run beside the reference."""

import os
from pathlib import Path

MODEL = Path(os.environ.get("KVRECLAIM_MODELS", Path.home() / ".cache/kvreclaim/models")) / "smollm2-135m"
"""SmolLM2-135M, where `kvreclaim models fetch` puts it."""

FULL = os.environ.get("KVRECLAIM_FULL") == "1"
"""Whether all of the matrix is wanted: `make test-vllm-full`."""

MARGIN = 1e-3
"""Top-two logit margin of the reference under which two float32 computations may pick different tokens."""


def first_difference(found, expected, margins):
    """Return (place, margin there) of the first token that differs; (None, None) where none does."""
    for place, (token, other) in enumerate(zip(found, expected, strict=True)):
        if token != other:
            return place, margins[place]
    return None, None


def parts(run, number):
    """Return the evictions from a request of a run, by its place among the prompts."""
    return [record for record in run.evictions if record.request.split("-")[0].split(".")[1] == str(number)]


def masks_of(run, number):
    """Return the effective masks of a request of a run, by its computed tokens; compactions have none."""
    return {
        record.computed_tokens: record.effective
        for record in parts(run, number)
        if record.effective is not None
    }


def assert_same(run, number, reference, counted):
    """Hold a request of a run to the reference; count in ``counted`` the ties where they part."""
    said = run.outputs[number]
    expected, margins = reference.generate(
        list(said.prompt_tokens), masks_of(run, number), len(said.output_tokens)
    )
    place, margin = first_difference(said.output_tokens, expected, margins)
    counted.append(place is not None)
    assert place is None or margin < MARGIN, f"token {place} differs where the margin is {margin}"
