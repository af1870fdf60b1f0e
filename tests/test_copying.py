"""Timing copies: what is copied is what was asked for, and a machine of known cost is measured right."""

from itertools import pairwise

import numpy as np
import pytest

from kvreclaim.cost import fit_copy_cost
from kvreclaim.errors import InputError
from kvreclaim.runtimes import copying

MIB = 1 << 20


@pytest.fixture
def device():
    return copying.open_device("cpu", MIB)


@pytest.mark.parametrize("runs", [1, 4, 64])
@pytest.mark.parametrize("way", ["slices", "gather"])
def test_a_copy_moves_the_bytes_in_the_runs_asked_for(device, way, runs):
    rows = 128
    device.source[:] = np.arange(len(device.source))[:, None] % 251 + 1
    copying._COPIES[way](device, rows, runs, np.random.default_rng(1))()
    written = device.destination.any(axis=1)
    assert np.count_nonzero(written) == rows
    # Every run lies in one piece: rows / runs consecutive rows carry consecutive numbers.
    numbers = device.destination[written][:, 0].astype(int)
    breaks = sum(later - earlier not in (1, -250) for earlier, later in pairwise(numbers))
    assert breaks <= runs - 1


@pytest.mark.parametrize("runs", [4, 64, 128])
def test_a_pack_moves_pairs_of_one_head_to_other_slots(device, runs, monkeypatch):
    pytest.importorskip("torch", reason="needs torch, which the cache of vLLM is made of")
    moved = []

    def move(self, blocks, head, source, destination):
        moved.append((blocks, head, source, destination))

    monkeypatch.setattr("kvreclaim.runtimes.vllm.cache.LayerCache.move", move)
    copying._pack(device, 128, runs, np.random.default_rng(1))()
    ((blocks, head, source, destination),) = [[part.numpy() for part in parts] for parts in moved]
    assert len(head) == len(source) == len(destination) == 128
    assert len(set(blocks)) * 32 > max(destination.max(), source.max())
    assert len(set(zip(head, source, strict=True))) == len(set(zip(head, destination, strict=True))) == 128
    assert source.max() < destination.min()
    goes_on = (np.diff(head) == 0) & (np.diff(source) == 1) & (np.diff(destination) == 1)
    assert 1 + np.count_nonzero(~goes_on) <= runs


@pytest.mark.parametrize("way", ["slices", "gather"])
def test_each_point_is_measured_beside_a_plain_copy(device, way):
    seen = []
    copies = copying.measure(
        device, way, (4096, 65536), (1, 8, 16), report=lambda done, of: seen.append((done, of))
    )
    assert [(copy.moved_bytes, copy.runs) for copy in copies] == [
        *((4096, 1), (4096, 8)),  # 8 rows make no 16 runs
        *((65536, 1), (65536, 8), (65536, 16)),
    ]
    assert all(copy.seconds > 0 and copy.plain_seconds > 0 and copy.rounds == 11 for copy in copies)
    assert seen == [(done, 12) for done in range(1, 13)]


def test_a_machine_of_known_cost_is_calibrated(device, monkeypatch):
    """With a clock that charges 20 µs, 2 µs a run and 1 ns a byte, that is what the fit finds."""
    now = 0.0

    def charge(copied):
        nonlocal now
        now += 20e-6 + 2e-6 * copied[0] + 1e-9 * copied[1]

    def priced(device, rows, runs, generator):
        return lambda: charge((runs, rows * copying.ROW_BYTES))

    def plain(device, rows, generator):
        return lambda: charge((1, 0))

    monkeypatch.setattr(copying, "_plain", plain)

    monkeypatch.setattr(copying, "perf_counter", lambda: now)
    monkeypatch.setitem(copying._COPIES, "slices", priced)
    copies = copying.measure(device, "slices", (4096, 65536, MIB // 2), (1, 2, 8))
    fit = fit_copy_cost([copy.sample for copy in copies])
    found = (fit.cost.fixed, fit.cost.per_run, fit.cost.per_byte)
    assert found == pytest.approx((20e-6, 2e-6, 1e-9), rel=1e-6)
    assert copies[0].plain_seconds == pytest.approx(22e-6)
    assert copies[0].slowdown == pytest.approx((22e-6 + 4096e-9) / 22e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"way": "fly"}, "way 'fly' is not here: pass one of slices, gather"),
        ({"way": "slices", "rounds": 9}, "rounds is 9: pass at least 10 pairs"),
        ({"way": "slices", "sizes": [1000]}, "size is 1000: pass whole rows of 512 bytes"),
        ({"way": "slices", "sizes": [MIB]}, "at most 524288"),
        ({"way": "slices", "runs": [0]}, "runs is 0"),
    ],
)
def test_bad_input_is_refused(device, arguments, words):
    with pytest.raises(InputError, match=words):
        copying.measure(device, **arguments)


def test_packs_are_for_the_cpu():
    assert "pack" not in copying.ways("cuda")


def test_a_device_that_is_not_here_is_refused():
    with pytest.raises(InputError, match="device 'abacus' is not here: pass one of cpu"):
        copying.open_device("abacus")
