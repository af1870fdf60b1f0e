"""A measurement of a tiny random model, which takes seconds: its settings, and what its folder holds."""

import csv
import json

from kvreclaim.capture.measure.settings import Settings


def settings(tiny, **other):
    model, text = tiny
    given = {
        "model": str(model),
        "texts": (str(text),),
        "policies": ("snapkv", "streaming-llm", "adakv:snapkv", "observed-attention", "random"),
        "ratios": (0.3, 0.5, 0.8),
        "context": 160,
        "prompts": 3,
        "next_tokens": 24,
        "block_sizes": (16, 8),
    }
    return Settings(**{**given, **other})


def rows_of(file):
    with file.open() as opened:
        return list(csv.DictReader(opened))


def contents(folder):
    """What every file holds, but the date of the run and what a killed process was about to write."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".tmp"]
    found = {str(file.relative_to(folder)): file.read_bytes() for file in files}
    run = json.loads(found["run.json"])
    run.pop("created")
    return {**found, "run.json": json.dumps(run)}


def differing(one, other):
    """Names of files that are not the same in two folders."""
    mine, others = contents(one), contents(other)
    return {name for name in {*mine, *others} if mine.get(name) != others.get(name)}
