"""What happens to requests that are evicted from: chunks, preemptions, aborts; and that nothing leaks."""

import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from observed import FULL, assert_same, masks_of, parts

from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm.options import Options

SNAPKV = Options("snapkv", 96, "pack", window=32, record_masks=True)


def test_chunked_prefill_changes_nothing(engine, reference, prompts):
    run = engine.run(prompts, SNAPKV, 12, tokens_per_step=100)
    assert len(run.evictions) == 3
    assert max(step.scheduled for step in run.steps) >= 2
    for number in range(3):
        assert_same(run, number, reference, [])


def test_a_preempted_request_is_evicted_again(engine, reference, prompts):
    # Three of 10 blocks and one of 9 leave 1 of 40 free; masked pairs give nothing back.
    chosen = [*(prompts[0][start : start + 318] for start in (0, 100, 200)), prompts[1]]
    run = engine.run(chosen, replace(SNAPKV, mode="mask"), 40)
    assert run.preemptions > 0
    assert run.free_blocks_end == run.pool_blocks
    resumed = 0
    for number, prompt in enumerate(chosen):
        begun = [record for record in parts(run, number) if record.event == 0]
        resumed += len(begun) > 1
        said = run.outputs[number].output_tokens
        # From a resumption on, the reference starts anew from all tokens that were recomputed.
        for place, record in enumerate(begun):
            first = record.computed_tokens - len(prompt)
            last = begun[place + 1].computed_tokens - len(prompt) if place + 1 < len(begun) else len(said)
            masks = {record.computed_tokens: masks_of(run, number)[record.computed_tokens]}
            whole = [*prompt, *said[:first]]
            expected, margins = reference.generate(whole, masks, last - first)
            differing = [
                at for at, pair in enumerate(zip(said[first:last], expected, strict=True)) if len({*pair}) > 1
            ]
            assert not differing or margins[differing[0]] < 1e-3
    assert resumed > 0


def test_aborts_give_everything_back(engine, prompts):
    def abort(step, running):
        if step in (3, 5):
            running.abort(step // 2 - 1)

    run = engine.run(prompts, SNAPKV, 10, after_step=abort)
    assert [output.finish_reason for output in run.outputs] == ["abort", "abort", "length"]
    assert engine.free_blocks() == run.pool_blocks


@pytest.fixture
def interruptible():
    """Python's own handler of interrupts; a shell's background job inherits that they are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_a_step_loses_ends_the_run_all_the_same(engine, prompts):
    def lose(step, _):
        if step == 3:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert step <= 3

    with pytest.raises(KeyboardInterrupt):
        engine.run(prompts, SNAPKV, 10, after_step=lose)
    assert engine.free_blocks() == engine.pool_blocks
    assert len(engine.run(prompts[:1], SNAPKV, 2).steps) == 2


def test_options_are_not_changed_under_running_requests(engine, prompts):
    def meddle(step, running):
        if step == 2:
            with pytest.raises(InputError, match="requests are running"):
                running.configure(Options("none"))

    engine.run(prompts[2:], SNAPKV, 4, after_step=meddle)


def test_nothing_leaks(engine, prompts):
    """Requests of mixed length, some aborted, some preempted: all blocks return, and memory stays."""
    count, early = (500, 100) if FULL else (30, 10)
    batch = 10
    half = engine.llm.llm_engine.engine_core.engine_core.scheduler.kvreclaim
    worker = engine.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    resident = []
    for start in range(0, count, batch):
        # Lengths come again: for each new one oneDNN keeps kernels, with or without the plugin.
        chosen = [prompts[n % 3][: 40 + 37 * (n % batch)] for n in range(start, start + batch)]
        options = replace(SNAPKV, budget=48, buffer=8, mode=("pack", "free", "mask")[start // batch % 3])

        def abort(step, running):
            if step == 4:
                running.abort(3)
                running.abort(7)

        run = engine.run(chosen, options, 12, after_step=abort)
        assert engine.free_blocks() == run.pool_blocks
        assert not half._evicted and not half._prefilled
        assert len(worker.kvreclaim_half._states) <= batch  # forgotten with the next step
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    if FULL:
        assert resident[-1] <= 1.02 * resident[early // batch - 1]
