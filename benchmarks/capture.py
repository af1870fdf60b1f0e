"""Capturing keep masks of a real model, against the bare prefill of the same prompt: time and peak memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from benchmarks.table import Row
from benchmarks.timing import estimate, in_turn
from kvreclaim import BlockLayout, audit
from kvreclaim.capture import models
from kvreclaim.capture.measure.prompts import cut_prompts, topics_text
from kvreclaim.capture.measure.settings import POLICIES
from kvreclaim.capture.measure.work import one_thread
from kvreclaim.capture.prefill import capture
from kvreclaim.capture.presses import make
from kvreclaim.capture.quality import Continuation
from kvreclaim.prompts import Prompt

MODEL = "smollm2-135m"
CONTEXT, NEXT_TOKENS = 2048, 256
QUICK_CONTEXT, QUICK_NEXT_TOKENS = 256, 16
RATIO = 0.5
SIXTEEN = (*POLICIES, "lagkv", "leverage-score", "cur", "h2o-accumulated")
FEW = 3  # rounds of the sixteen, which take minutes


def run(quick: bool) -> Iterator[Row]:
    """Yield the rows; ``quick`` takes a short prompt."""
    context, next_tokens = (QUICK_CONTEXT, QUICK_NEXT_TOKENS) if quick else (CONTEXT, NEXT_TOKENS)
    bench = Bench(context, next_tokens)
    with one_thread():
        yield from _times(bench)
    yield from _memory(context, next_tokens)


class Bench:
    """A model and one prompt for it.

    Parameters
    ----------
    context, next_tokens
        Tokens of the prompt, and after it.
    """

    def __init__(self, context: int, next_tokens: int) -> None:
        self._model, tokenizer = models.load(MODEL)
        self._prompt: Prompt = cut_prompts(topics_text(), tokenizer, 1, context, next_tokens)[0]
        self._ids = torch.tensor([self._prompt.ids])

    def prefill(self) -> None:
        """Read the prompt, nothing else."""
        with torch.no_grad():
            self._model.model(input_ids=self._ids, past_key_values=DynamicCache(), use_cache=True)

    def snapkv(self) -> None:
        """Capture SnapKV."""
        self._capture(("snapkv",))

    def sixteen(self) -> None:
        """Capture sixteen policies, audit each mask and replay the next tokens under it."""
        captured = self._capture(SIXTEEN)
        continuation = Continuation(self._model, captured.cache, torch.tensor(self._prompt.next_ids))
        for mask in captured.masks.values():
            audit(mask, BlockLayout(16))
            continuation.quality(mask)

    def _capture(self, names: tuple[str, ...]) -> Any:
        return capture(
            self._model, {name: make(name, RATIO, len(self._prompt.ids)) for name in names}, self._ids
        )


def _times(bench: Bench) -> Iterator[Row]:
    bare, snapkv = in_turn([bench.prefill, bench.snapkv])
    yield Row(
        "capture", "SnapKV captured, of the bare prefill's time", "x", estimate(snapkv / bare), below=1.1
    )
    yield Row("capture", "the bare prefill", "s", estimate(bare))
    bare, sixteen = in_turn([bench.prefill, bench.sixteen], rounds=FEW)
    what = "16 policies with ledger and replay, of one prefill"
    yield Row("capture", what, "x", estimate(sixteen / bare), below=12)


def _memory(context: int, next_tokens: int) -> Iterator[Row]:
    prefill, sixteen = (_peak_of(work, context, next_tokens) for work in (Bench.prefill, Bench.sixteen))
    what = "peak memory of the 16 policies with replay, of the prefill's"
    yield Row("capture", what, "x", estimate([sixteen / prefill]), below=1.5)


def _peak_of(work: Callable[[Bench], None], context: int, next_tokens: int) -> float:
    """Return the peak resident memory of a new process that does some work on a loaded model, in kB."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_peak_here, work, context, next_tokens).result()


def _peak_here(work: Callable[[Bench], None], context: int, next_tokens: int) -> float:
    bench = Bench(context, next_tokens)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak of loading the model
    with one_thread():
        work(bench)
    status = Path("/proc/self/status").read_text()
    return float(status.partition("VmHWM:")[2].split()[0])
