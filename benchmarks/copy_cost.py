"""``python -m benchmarks.copy_cost --out bench``: packs in vLLM, and what the cost model says of them.

Needs vLLM and SmolLM2, as `benchmarks.vllm_costs`. The model is calibrated on copies as the plugin makes
them, outside of the engine; then an engine packs, and each pack's moves are timed beside a plain copy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.table import Row, as_csv, markdown, verdict
from benchmarks.timing import estimate
from benchmarks.vllm_costs import MODEL, prompts_of
from kvreclaim.cost import CopyFit, fit_copy_cost
from kvreclaim.results import ResultsFolder
from kvreclaim.runtimes import copying
from kvreclaim.runtimes.vllm.engine import Engine
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.runtimes.vllm.worker import WorkerHalf

TOKENS = 520
BUDGETS = (96, 128, 192, 256)
POLICIES = ("streaming-llm", "snapkv", "random")
TEXT = """# What a pack copies, and what the cost model says of it

SmolLM2-135M in float32 in vLLM on one CPU core, prompts of {tokens} tokens, blocks of 32. The model was
fitted to {copies} copies of other sizes and runs, as `kvreclaim calibrate copy --way pack` measures them,
outside of the engine: {fixed:.0f} µs a layer, {per_run:.2f} µs a run, {bandwidth:.2f} GB/s; its median
error on them is {error:.0%}. The engine's moves are timed in CPU time of their one thread, which is wall time
on a machine that does nothing else.

{table}
{verdict}

| policy | kept | KiB moved | runs | measured, µs | predicted, µs | plain copy, µs |
| --- | --: | --: | --: | --: | --: | --: |
{packs}
"""


@dataclass(frozen=True)
class Pack:
    """One pack in the engine: what it moved, in how many layers, and how long its moves and a copy took."""

    policy: str
    budget: int
    moved_bytes: int
    runs: int
    layers: int
    seconds: float
    plain_seconds: float


def main() -> None:
    """Calibrate, pack, compare, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.copy_cost", description=__doc__)
    parser.add_argument("--out", default="bench", help="the folder to write (default: bench)")
    folder = ResultsFolder(parser.parse_args().out)
    copies = copying.measure(copying.open_device("cpu"), "pack")
    fit = fit_copy_cost([copy.sample for copy in copies])
    packs = list(_packs())
    rows = list(_rows(packs, fit))
    cost = fit.cost
    text = TEXT.format(
        tokens=TOKENS,
        copies=len(copies),
        fixed=cost.fixed * 1e6,
        per_run=cost.per_run * 1e6,
        bandwidth=(cost.bandwidth or 0.0) / 1e9,
        error=fit.median_error,
        table=markdown(rows),
        verdict=verdict(rows),
        packs="\n".join(_line(pack, fit) for pack in packs),
    )
    print(text)
    folder.write("copy-cost.md", text)
    folder.write("copy-cost.csv", as_csv(rows))


def _packs() -> Iterator[Pack]:
    """Yield the packs of one engine, the first of which is not counted."""
    moves: list[float] = []
    original: Any = WorkerHalf._move

    def timed(self: WorkerHalf, *arguments: Any) -> None:
        started = time.thread_time()
        original(self, *arguments)
        moves.append(time.thread_time() - started)

    WorkerHalf._move = timed  # type: ignore[method-assign]
    try:
        with Engine(str(MODEL), pool_blocks=128) as engine:
            engine.run(prompts_of(1, TOKENS), Options("random", 128), 2)
            for seed, budget in enumerate(BUDGETS):
                for policy in POLICIES:
                    moves.clear()
                    run = engine.run(prompts_of(1, TOKENS), Options(policy, budget, seed=seed), 2)
                    (record,), (seconds,) = run.evictions, moves
                    layers = engine.llm.llm_engine.model_config.hf_config.num_hidden_layers
                    size = record.moved_bytes
                    yield Pack(policy, budget, size, record.runs, layers, seconds, _plain(size))
    finally:
        WorkerHalf._move = original  # type: ignore[method-assign]


def _plain(size: int) -> float:
    """Time a copy of so many bytes from one place to another, both cold."""
    source, target = (np.ones(copying.BUFFER_BYTES, np.uint8) for _ in range(2))
    started = time.thread_time()
    target[:size] = source[-size:]
    return time.thread_time() - started


def _predicted(pack: Pack, fit: CopyFit) -> float:
    return fit.cost.seconds(pack.moved_bytes, pack.runs, copies=pack.layers)


def _rows(packs: list[Pack], fit: CopyFit) -> Iterator[Row]:
    errors = np.array([_predicted(pack, fit) / pack.seconds - 1 for pack in packs])
    plain = np.array([pack.seconds / pack.plain_seconds for pack in packs])
    yield Row(
        "cost of a pack", "size of the error of its prediction", "x", estimate(np.abs(errors)), below=0.25
    )
    yield Row("cost of a pack", "predicted / measured", "x", estimate(errors + 1))
    yield Row("cost of a pack", "against a plain copy of the bytes", "x", estimate(plain))


def _line(pack: Pack, fit: CopyFit) -> str:
    times = (pack.seconds, _predicted(pack, fit), pack.plain_seconds)
    numbers = [f"{pack.moved_bytes / 1024:,.0f}", f"{pack.runs:,}", *(f"{each * 1e6:,.0f}" for each in times)]
    return "| " + " | ".join([pack.policy, str(pack.budget), *numbers]) + " |"


if __name__ == "__main__":
    main()
