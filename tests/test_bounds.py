"""Closed forms against enumeration of every layout, simulation, and the published study's figures."""

import math
from fractions import Fraction
from statistics import NormalDist, fmean

import numpy as np
import pytest
from bruteforce import every_layout, freed_in, moved_in
from hypothesis import given
from hypothesis import strategies as st
from strategies import block_sizes

from kvreclaim import bounds
from kvreclaim.errors import InputError

SMALL = [(tokens, size) for tokens in range(1, 10) for size in range(1, 6)]


def study_lengths(tokens, runs=30):
    """Return the study's kept tokens per run: half, with a stratified jitter of .02."""
    return [round((0.5 + 0.02 * NormalDist().inv_cdf((run + 0.5) / runs)) * tokens) for run in range(runs)]


class TestScatter:
    def test_published_bound(self):
        assert bounds.independent_reclaim(0.5, 16) == pytest.approx(1.5e-5, abs=0.5e-6)
        assert bounds.independent_reclaim(0.75, 16) == pytest.approx(0.0100226, abs=5e-8)

    def test_arrays_keep_their_shape(self):
        ratios = np.array([[0.0, 0.5], [0.75, 1.0]])
        assert bounds.independent_reclaim(ratios, 2).tolist() == [[0.0, 0.25], [0.5625, 1.0]]
        assert bounds.independent_efficiency([0.0, 0.5, 1.0], 3).tolist() == [0.0, 0.25, 1.0]
        assert isinstance(bounds.independent_reclaim(0.5, 2), float)

    @given(st.floats(0.01, 1), block_sizes, st.integers(1, 4), st.integers(1, 4))
    def test_heads_and_layers_act_like_a_larger_block(self, ratio, size, heads, layers):
        together = bounds.independent_heads_reclaim(ratio, size, heads, layers)
        assert together == pytest.approx(bounds.independent_reclaim(ratio, size) ** (heads * layers))
        assert bounds.independent_efficiency(ratio, size) * ratio == pytest.approx(
            bounds.independent_reclaim(ratio, size)
        )

    @pytest.mark.parametrize(("tokens", "size"), SMALL)
    def test_exact_expectation_and_range_over_every_layout(self, tokens, size):
        for evicted in range(tokens + 1):
            freed = [freed_in(alive, size) for alive in every_layout(tokens, evicted)]
            expected = Fraction(sum(freed), len(freed) * -(-tokens // size))
            assert bounds.random_reclaim(tokens, evicted, size) == float(expected)
            assert bounds.freed_range(tokens, evicted, size) == (min(freed), max(freed))
            fewest = min(freed) / -(-tokens // size)
            assert bounds.worst_case_reclaim(evicted / tokens, size) <= fewest + 1e-12

    def test_worst_case_is_reached_when_blocks_divide_the_tokens(self):
        for evicted in range(65):
            fewest = bounds.freed_range(64, evicted, 16)[0] / 4
            assert bounds.worst_case_reclaim(evicted / 64, 16) == pytest.approx(fewest)

    def test_one_survivor_a_block_frees_nothing_where_the_mean_says_a_third(self):
        assert bounds.worst_case_reclaim(15 / 16, 16) == 0.0
        assert bounds.freed_range(8192, 8192 * 15 // 16, 16)[0] == 0
        assert bounds.independent_reclaim(15 / 16, 16) == pytest.approx(0.356, abs=0.001)

    @pytest.mark.parametrize(("tokens", "ratio"), [(8192, 0.9854), (800, 0.858), (64, 0.081)])
    def test_fixed_counts_free_less_than_independent_coins(self, tokens, ratio):
        exact = bounds.random_reclaim(tokens, tokens // 2, 16)
        assert exact / bounds.independent_reclaim(0.5, 16) == pytest.approx(ratio, abs=0.0005)

    def test_published_fixed_counts(self):
        assert bounds.random_reclaim(8192, 4096, 16) == pytest.approx(1.5036e-5, rel=1e-4)
        assert bounds.random_reclaim(8192, 6144, 16) == pytest.approx(0.0099737, rel=1e-4)

    def test_huge_blocks(self):
        assert bounds.random_reclaim(131072, 131072, 1600) == 1.0
        assert bounds.random_reclaim(131072, 65536, 1600) == 0.0  # about 1e-484


class TestStreamingLLM:
    @pytest.mark.parametrize("size", range(1, 6))
    def test_every_shape(self, size):
        for tokens in range(1, 18):
            for sinks in range(tokens + 2):
                for window in range(tokens + 2):
                    alive = [token < sinks or token >= tokens - window for token in range(tokens)]
                    shape = (tokens, sinks, window, size)
                    assert bounds.streaming_llm_freed(*shape) == freed_in(alive, size), shape
                    assert bounds.streaming_llm_moved(*shape) == moved_in(alive, size), shape

    @pytest.mark.parametrize(("size", "freed"), [(4, 708), (8, 707), (16, 705), (32, 705), (64, 705)])
    def test_published_shape(self, size, freed):
        lengths = study_lengths(50 * size)
        assert sum(bounds.streaming_llm_freed(50 * size, 4, kept, size) for kept in lengths) == freed

    def test_published_moves(self):
        assert sum(bounds.streaming_llm_moved(800, 4, kept, 16) for kept in study_lengths(800)) == 73

    def test_moves_average_over_every_alignment(self):
        moved = [bounds.streaming_llm_moved(8192, 4, window, 16) for window in range(4000, 4016)]
        assert fmean(moved) == 42 / 16


class TestHeavyHitters:
    @pytest.mark.parametrize(("tokens", "size"), SMALL)
    def test_h2o_over_every_layout(self, tokens, size):
        for budget in range(tokens + 1):
            for recent in range(budget + 1):
                before = tokens - recent
                freed = [
                    freed_in(alive + [True] * recent, size) for alive in every_layout(before, tokens - budget)
                ]
                expected = Fraction(sum(freed), len(freed) * -(-tokens // size))
                assert bounds.h2o_reclaim(tokens, budget, recent, size) == float(expected)

    def test_published_h2o(self):
        assert bounds.h2o_reclaim(200, 100, 50, 4) == pytest.approx(0.1432, abs=5e-5)
        assert bounds.h2o_reclaim(800, 400, 200, 16) < 0.002
        assert bounds.h2o_asymptote(0.5, 0.5, 4) == pytest.approx(0.148, abs=5e-4)
        assert bounds.h2o_asymptote(0.5, 0.5, 16) == pytest.approx(0.5 * 1.5**-15)

    @pytest.mark.parametrize(("retained", "share"), [(0.1, 0.5), (0.5, 0.25), (0.7, 1.0), (0.3, 0.0)])
    def test_asymptote_is_the_limit(self, retained, share):
        tokens = 1_600_000
        budget = round(retained * tokens)
        exact = bounds.h2o_reclaim(tokens, budget, round(share * budget), 16)
        assert bounds.h2o_asymptote(retained, share, 16) == pytest.approx(exact, rel=1e-3)

    def test_edges_of_the_asymptotes(self):
        assert bounds.h2o_asymptote(1.0, 1.0, 16) == 0.0
        assert bounds.h2o_asymptote(0.0, 0.5, 16) == 1.0
        assert bounds.snapkv_reclaim_estimate(0.4, 0.5, 1, 16) == bounds.h2o_asymptote(0.4, 0.5, 16)

    def test_published_snapkv_estimate(self):
        assert bounds.snapkv_reclaim_estimate(0.5, 0.5, 12, 16) == pytest.approx(0.301, abs=5e-4)

    def test_snapkv_estimate_against_a_long_sequence(self):
        tokens, budget, length, size = 64_000, 32_000, 12, 16
        before, reclaims = tokens - budget // 2, []
        for seed in range(8):
            starts = np.random.default_rng(seed).integers(0, before - length + 1, before)
            alive = np.zeros(tokens, dtype=bool)
            alive[before:] = True
            live = budget // 2
            for start in starts:
                live += length - np.count_nonzero(alive[start : start + length])
                alive[start : start + length] = True
                if live >= budget:
                    break
            reclaims.append(np.mean(~alive.reshape(-1, size).any(axis=1)))
        estimate = bounds.snapkv_reclaim_estimate(0.5, 0.5, length, size)
        assert fmean(reclaims) == pytest.approx(estimate, abs=0.005)


class TestMoves:
    @pytest.mark.parametrize(
        ("ratio", "moves"), [(0.25, 1251.75), (0.5, 1646.21), (0.75, 1251.75), (0.9, 617.50)]
    )
    def test_published_oracle(self, ratio, moves):
        live = 8192 - round(ratio * 8192)
        assert bounds.compaction_moves_lower_bound(8192, live, 16) == pytest.approx(moves, abs=0.005)

    @pytest.mark.parametrize(("tokens", "size"), [(8, 2), (9, 3), (10, 4), (11, 3), (7, 2), (5, 8), (6, 1)])
    def test_never_above_the_mean_over_every_layout(self, tokens, size):
        for live in range(tokens + 1):
            mean = fmean(moved_in(alive, size) for alive in every_layout(tokens, tokens - live))
            bound = bounds.compaction_moves_lower_bound(tokens, live, size)
            assert 0.0 <= bound <= mean + 1e-12

    def test_close_to_the_mean_at_the_studys_size(self):
        rng = np.random.default_rng(3)
        alive = np.arange(8192) < 4096
        moved = []
        for _ in range(200):
            held = np.sort(rng.permutation(alive).reshape(-1, 16).sum(axis=1))
            moved.append(4096 - held[-256:].sum())
        assert np.mean(moved) == pytest.approx(1646.21, abs=4 * np.std(moved) / math.sqrt(200))

    @pytest.mark.parametrize("size", [2, 3, 5, 8, 16])
    def test_one_hole_at_every_offset(self, size):
        ratios, moves = [], []
        for offset in range(1, size):
            alive = np.ones(6 * size, dtype=bool)
            alive[size + offset : 3 * size + offset] = False
            moves.append(moved_in(alive, size))
            assert freed_in(alive, size) == 1
            ratios.append(size / moves[-1])
        assert bounds.single_hole_slots_per_move(size) == pytest.approx(fmean(ratios))
        assert bounds.single_hole_ratio_of_means(size) == pytest.approx(size / fmean(moves))

    def test_published_hole(self):
        harmonic = sum(Fraction(1, k) for k in range(1, 8))
        expected = Fraction(16, 15) * (2 * harmonic + Fraction(1, 8))
        assert (
            bounds.single_hole_slots_per_move(16)
            == pytest.approx(float(expected))
            == pytest.approx(5.665, abs=5e-4)
        )
        assert bounds.single_hole_ratio_of_means(16) == 3.75

    def test_published_rice_gap(self):
        assert bounds.rice_gap(16, 50) == pytest.approx(0.0338, abs=5e-5)
        assert bounds.rice_gap(16, 50, ratio=0.0) == bounds.rice_gap(16, 50, ratio=1.0) == 0.0
        assert bounds.rice_gap(1, 50) == 0.0

    @pytest.mark.parametrize("ratio", [0.25, 0.5, 0.8])
    def test_rice_gap_against_a_smooth_field(self, ratio):
        tokens, kernel = 8192, np.exp(-(np.arange(-200, 201) ** 2) / (2 * 50**2))
        padded = np.zeros(tokens)
        padded[: kernel.size] = kernel
        gaps = []
        for seed in range(40):
            noise = np.random.default_rng(seed).standard_normal(tokens)
            field = np.fft.irfft(np.fft.rfft(noise) * np.fft.rfft(padded))
            alive = np.ones(tokens, dtype=bool)
            alive[np.argsort(field)[: round(ratio * tokens)]] = False
            gaps.append(ratio - np.mean(~alive.reshape(-1, 16).any(axis=1)))
        assert np.mean(gaps) == pytest.approx(bounds.rice_gap(16, 50, ratio), abs=0.004)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.independent_reclaim(1.2, 16), "ratio is 1.2: pass a number from 0 to 1"),
        (lambda: bounds.independent_reclaim([0.1, math.nan], 16), "ratio must be numbers from 0 to 1"),
        (lambda: bounds.independent_efficiency(0.5, 0), "block_size is 0"),
        (lambda: bounds.independent_heads_reclaim(0.5, 16, 0, 1), "heads is 0"),
        (lambda: bounds.random_reclaim(0, 0, 16), "tokens is 0"),
        (lambda: bounds.random_reclaim(10, 11, 4), "evicted is 11, tokens is 10"),
        (lambda: bounds.freed_range(10, -1, 4), "evicted is -1"),
        (lambda: bounds.freed_range(10, 5, 4.0), "block_size is 4.0"),
        (lambda: bounds.worst_case_reclaim(math.nan, 16), "ratio is nan"),
        (lambda: bounds.streaming_llm_freed(10, -1, 2, 4), "sinks is -1"),
        (lambda: bounds.streaming_llm_moved(10, 1, True, 4), "window is True"),
        (lambda: bounds.h2o_reclaim(10, 11, 2, 4), "budget is 11, tokens is 10"),
        (lambda: bounds.h2o_reclaim(10, 5, 6, 4), "recent is 6, budget is 5"),
        (lambda: bounds.h2o_asymptote(0.5, 1.5, 4), "recent_share is 1.5"),
        (lambda: bounds.snapkv_reclaim_estimate(0.5, 0.5, 0.5, 4), "cluster_length is 0.5: pass at least 1"),
        (lambda: bounds.compaction_moves_lower_bound(10, 11, 4), "live is 11, tokens is 10"),
        (lambda: bounds.single_hole_slots_per_move(1), "block_size is 1: pass at least 2"),
        (lambda: bounds.rice_gap(16, 0.0), "smoothing is 0.0: pass a finite number greater than 0"),
        (lambda: bounds.poisson_interval(-1), "count is -1"),
        (lambda: bounds.poisson_interval(10**30), "count is 1000000000000000000000000000000, the limit is"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
