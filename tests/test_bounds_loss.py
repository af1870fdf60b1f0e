"""Importance losses, the minimum-loss frontier and count intervals against draws, enumeration and tables."""

import math
from itertools import combinations
from statistics import NormalDist, fmean

import numpy as np
import pytest
from bruteforce import every_layout, freed_in
from hypothesis import given
from hypothesis import strategies as st
from strategies import block_sizes

from kvreclaim import bounds
from kvreclaim.errors import InputError


class TestLoss:
    @pytest.mark.parametrize(
        ("distribution", "draw"),
        [
            ("lognormal", lambda rng, n: rng.lognormal(0, 1, n)),
            ("uniform", lambda rng, n: rng.random(n)),
            ("exponential", lambda rng, n: rng.exponential(1, n)),
            ("pareto-2", lambda rng, n: rng.pareto(2, n) + 1),
            ("pareto-1.5", lambda rng, n: rng.pareto(1.5, n) + 1),
        ],
    )
    def test_against_sorted_draws(self, distribution, draw):
        tolerance = 0.01 if distribution.startswith("pareto") else 0.002
        scores = np.sort(draw(np.random.default_rng(0), 1_000_000))
        shares = np.concatenate([[0.0], np.cumsum(scores)]) / scores.sum()
        for ratio in (0.0, 0.1, 0.5, 0.9, 1.0):
            expected = shares[round(ratio * scores.size)]
            assert bounds.low_importance_loss(distribution, ratio) == pytest.approx(expected, abs=tolerance)

    def test_published_losses(self):
        assert bounds.lognormal_loss(0.5) == pytest.approx(0.15866, abs=5e-6)
        assert bounds.lognormal_loss(0.5, sigma=2.0) == pytest.approx(NormalDist().cdf(-2))
        assert bounds.uniform_loss(0.5) == 0.25

    def test_errors(self):
        with pytest.raises(InputError, match="unknown distribution 'cauchy': pass one of lognormal, uniform"):
            bounds.low_importance_loss("cauchy", 0.5)
        with pytest.raises(InputError, match=r"shape is 1\.0: pass more than 1"):
            bounds.pareto_loss(0.5, 1.0)


class TestFrontier:
    @pytest.mark.parametrize("ties", [False, True])
    def test_embraces_the_optimum_over_every_eviction(self, ties):
        rng = np.random.default_rng(11)
        for tokens, size in [(6, 2), (7, 3), (8, 4), (9, 2), (8, 3), (5, 1), (4, 6)]:
            scores = rng.integers(1, 4, tokens) if ties else rng.lognormal(size=tokens)
            for evicted in range(tokens + 1):
                best = {}
                for alive in every_layout(tokens, evicted):
                    loss = scores[~np.array(alive)].sum() / scores.sum()
                    for freed in range(freed_in(alive, size) + 1):
                        best[freed] = min(best.get(freed, math.inf), loss)
                for freed, optimum in best.items():
                    point = bounds.minimum_loss_frontier(scores, evicted, size, freed)
                    assert point.lower_bound <= optimum + 1e-12
                    assert point.loss == pytest.approx(optimum)

    @given(st.data())
    def test_the_keep_vector_attains_the_loss(self, data):
        tokens, size = data.draw(st.integers(1, 40)), data.draw(block_sizes)
        scores = np.array(data.draw(st.lists(st.integers(1, 20), min_size=tokens, max_size=tokens)))
        evicted = data.draw(st.integers(0, tokens))
        freed = data.draw(st.integers(0, bounds.freed_range(tokens, evicted, size)[1]))
        point = bounds.minimum_loss_frontier(scores, evicted, size, freed)
        assert np.count_nonzero(~point.keep) == evicted
        assert freed_in(point.keep, size) >= freed
        assert point.loss == pytest.approx(scores[~point.keep].sum() / scores.sum())
        assert point.lower_bound <= point.loss

    def test_published_frontier(self):
        published = {
            0: 0.159,
            64: 0.183,
            128: 0.225,
            160: 0.254,
            184: 0.280,
            200: 0.298,
            224: 0.330,
            256: 0.379,
        }
        draws = [np.random.default_rng(seed).lognormal(size=8192) for seed in range(20)]
        for freed, loss in published.items():
            points = [bounds.minimum_loss_frontier(scores, 4096, 16, freed) for scores in draws]
            assert fmean(point.loss for point in points) == pytest.approx(loss, abs=0.004)
            assert max(point.loss - point.lower_bound for point in points) < 2e-5

    def test_ends(self):
        scores = np.random.default_rng(1).lognormal(size=512)
        lowest = np.sort(scores)[:200].sum() / scores.sum()
        whole_blocks = np.sort(scores.reshape(-1, 16).sum(axis=1))[:12].sum() / scores.sum()
        assert bounds.minimum_loss_frontier(scores, 200, 16, 0).loss == pytest.approx(lowest)
        assert bounds.minimum_loss_frontier(scores, 192, 16, 12).loss == pytest.approx(whole_blocks)
        assert bounds.minimum_loss_frontier(np.ones(64), 40, 16, 2).loss == pytest.approx(40 / 64)

    def test_a_dear_partial_last_block_is_cleared_when_only_it_fits(self):
        scores = np.array([1.0, 1.0, 1.0, 1.0, 50.0])
        point = bounds.minimum_loss_frontier(scores, 1, 4, 1)
        assert point.keep.tolist() == [True, True, True, True, False]
        assert point.loss == point.lower_bound == pytest.approx(50 / 54)
        assert bounds.minimum_loss_frontier([0, 0, 0, 0, 1e20], 1, 4, 1).loss == 1.0

    def test_a_block_too_large_for_the_evictions_is_never_the_answer(self):
        point = bounds.minimum_loss_frontier([1, 1, 2, 3, 7], 2, 4, 1)  # clearing the first block costs 7
        assert point.keep.tolist() == [False, True, True, True, False]

    def test_ties_take_a_set_of_blocks_between_the_two_prices(self):
        scores = np.array([5, 5, 1, 3, 6, 4, 2, 1, 5, 5, 2, 1, 5, 2, 1, 5, 1, 2, 1, 6, 3, 6])
        block = np.arange(22) // 4
        costs = []
        for chosen in combinations(range(6), 4):
            cleared = np.isin(block, chosen)
            others = np.sort(scores[~cleared])
            costs.append(scores[cleared].sum() + others[: 19 - np.count_nonzero(cleared)].sum())
        point = bounds.minimum_loss_frontier(scores, 19, 4, 4)
        assert point.loss == pytest.approx(min(costs) / scores.sum())

    @pytest.mark.parametrize(
        "importance", [[], [[1.0]], [1.0, math.nan], [1.0, -1.0], [0.0, 0.0], ["a"], [True]]
    )
    def test_unusable_importance(self, importance):
        with pytest.raises(InputError, match="importance: pass one row of finite, non-negative numbers"):
            bounds.minimum_loss_frontier(importance, 0, 1, 0)

    def test_too_many_blocks(self):
        with pytest.raises(InputError, match="freed is 2, the most that can be freed is 1"):
            bounds.minimum_loss_frontier(np.ones(64), 31, 16, 2)


class TestPoissonInterval:
    @pytest.mark.parametrize(
        ("count", "low", "high"),
        [(0, 0.0, 3.6889), (1, 0.0253, 5.5716), (2, 0.2422, 7.2247), (10, 4.7954, 18.3904)],
    )
    def test_tabulated(self, count, low, high):
        assert bounds.poisson_interval(count) == pytest.approx((low, high), abs=5e-5)

    @pytest.mark.parametrize("count", [0, 1, 3, 50, 2000])
    @pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
    def test_tails(self, count, confidence):
        low, high = bounds.poisson_interval(count, confidence)

        def at_most(events, mean):
            return math.fsum(
                math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(events + 1)
            )

        tail = (1 - confidence) / 2
        assert at_most(count, high) == pytest.approx(tail, rel=1e-6)
        assert low == 0 if count == 0 else 1 - at_most(count - 1, low) == pytest.approx(tail, rel=1e-6)

    def test_two_freed_blocks_in_1500_say_little(self):
        low, high = bounds.poisson_interval(2)
        assert low / 1500 < 0.0002 < bounds.h2o_reclaim(800, 400, 200, 16) < 0.0048 < high / 1500

    @pytest.mark.parametrize("confidence", [0.0, 1.0, 1.5, math.nan])
    def test_confidence_in_between(self, confidence):
        with pytest.raises(InputError, match="confidence is"):
            bounds.poisson_interval(1, confidence)
