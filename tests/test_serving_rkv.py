"""R-KV's stress table: compactions, peaks, and peaks as a log every ten seconds would show them.

The port's README gives tokens a second for the full cache in a large and in a small pool. Two numbers, the
shares of the H100's bandwidth and of its matrix rate that are reached, follow from the two; what is tested is
what they were not fitted to.
"""

import numpy as np
import pytest

from kvreclaim.scheduling import SchedulerSettings
from kvreclaim.serving.eviction import rkv
from kvreclaim.serving.kernel import state as places
from kvreclaim.serving.search import minimise
from kvreclaim.serving.simulate import simulate
from kvreclaim.serving.steptime import StepTime
from kvreclaim.serving.trace import Trace

TRACE = Trace(np.zeros(256), np.full(256, 700), np.full(256, 1024))
REPORTED = {430_000: 13_902, 282_000: 10_503}  # tokens a second, full cache, by tokens of the pool
BANDWIDTH, RATE = 3.35e12, 989e12  # H100's data sheet
WEIGHTS, PARAMETERS, PAIR = 2 * 7.62e9, 7.62e9, 28 * 4 * 2 * 128 * 2


def run(pool, shares, eviction=None, interval=10.0):
    memory, compute = np.exp(shares)
    step = StepTime(
        WEIGHTS / BANDWIDTH / memory, 0.0, PAIR / BANDWIDTH / memory, 2 * PARAMETERS / RATE / compute
    )
    limits = SchedulerSettings(pool // 16 - 1, 16, max_num_seqs=1024, max_num_batched_tokens=16_384)
    return simulate(TRACE, limits, step, eviction, interval=interval)


@pytest.fixture(scope="module")
def shares():
    def error(point):
        rates = {pool: 256 * 1024 / run(pool, point).seconds for pool in REPORTED}
        return sum((rates[pool] / REPORTED[pool] - 1) ** 2 for pool in REPORTED)

    found, left = minimise(error, np.log([0.7, 0.7]), 0.3, 60)
    assert left < 1e-6
    return found


def test_compactions_and_peaks(shares):
    for pool in REPORTED:
        evicting = run(pool, shares, rkv(256, 128))
        assert evicting.count(places.EVICTIONS) == 7 * 256  # every 128 of 1,023 decoded tokens
        assert evicting.count(places.PEAK_RUNNING) == 256
        assert evicting.samples[:, places.S_RUNNING].max() == 256
        assert not evicting.pool_binding


def test_a_request_reserves_25_blocks_for_384_tokens_ever_after(shares):
    late = run(430_000, shares, rkv(256, 128), interval=0.05)
    running = late.samples[:, places.S_RUNNING]
    held = late.settings.blocks - late.samples[:, places.S_FREE]
    whole = (running == 256) & (late.samples[:, places.S_FILLED] < 256 * 400)
    assert held[whole][-1] == 256 * 25


def test_the_sampled_peak_of_the_full_cache(shares):
    small, large = run(282_000, shares), run(430_000, shares)
    assert abs(small.samples[:, places.S_RUNNING].max() - 231) <= 6
    assert abs(large.samples[:, places.S_RUNNING].max() - 256) <= 6
    assert small.count(places.PEAK_RUNNING) == large.count(places.PEAK_RUNNING) == 256


def test_mask_only_returns_no_block(shares):
    masked = run(282_000, shares, rkv(256, 128, "mask"))
    full = run(282_000, shares)
    assert masked.count(places.BLOCKS_FREED) == 0
    np.testing.assert_array_equal(masked.each.finish, full.each.finish)
