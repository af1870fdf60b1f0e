"""Synthetic scores: their laws, their geometry, and what they refuse."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreclaim import bounds
from kvreclaim.errors import InputError
from kvreclaim.scores.synthetic import DISTRIBUTIONS, correlated_importance, importance, random_clusters


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_importance_loses_what_its_law_says(distribution: str) -> None:
    scores = np.sort(importance(rng(), distribution, 200_000))
    assert scores[0] > 0
    # Infinite variance: the sample strays far from the limit.
    allowed = {"pareto-2": 0.02, "pareto-1.5": 0.08}.get(distribution, 0.004)
    for ratio in (0.25, 0.5, 0.75):
        lost = scores[: int(ratio * scores.size)].sum() / scores.sum()
        assert lost == pytest.approx(bounds.low_importance_loss(distribution, ratio), abs=allowed)


@pytest.mark.parametrize(
    ("distribution", "quantile"),
    [
        ("lognormal", lambda p: np.exp(NormalDist().inv_cdf(p))),
        ("uniform", lambda p: p),
        ("exponential", lambda p: -np.log1p(-p)),
        ("pareto-2", lambda p: (1 - p) ** (-1 / 2)),
        ("pareto-1.5", lambda p: (1 - p) ** (-1 / 1.5)),
    ],
)
def test_importance_has_the_quantiles_of_its_law(distribution: str, quantile) -> None:  # type: ignore[no-untyped-def]
    scores = importance(rng(1), distribution, (100, 1000))
    assert scores.shape == (100, 1000)
    for p in (0.1, 0.5, 0.9):
        assert np.quantile(scores, p) == pytest.approx(quantile(p), rel=0.03)


def test_equal_generators_draw_equal_importance() -> None:
    assert np.array_equal(importance(rng(7), "lognormal", 50), importance(rng(7), "lognormal", 50))


def test_correlated_field_is_a_circular_gaussian_smoothing() -> None:
    tokens, width = 700, 10.0
    state = rng(3)
    state.standard_normal(tokens)  # the noise, which rho = 1 does not use
    white = state.standard_normal(tokens)
    offsets = np.arange(-40, 41)
    kernel = np.exp(-(offsets**2) / (2 * width**2))
    smooth = np.array([kernel @ white[(t + offsets) % tokens] for t in range(tokens)])
    expected = np.exp((smooth - smooth.mean()) / smooth.std())
    assert np.allclose(correlated_importance(rng(3), tokens, 1.0, width), expected)


def test_correlated_field_wraps_a_kernel_longer_than_the_sequence() -> None:
    field = np.log(correlated_importance(rng(3), 100, 1.0, 50.0))
    assert field.mean() == pytest.approx(0, abs=1e-12)
    assert field.std() == pytest.approx(1)


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_correlation_changes_the_geometry_and_not_the_marginal_law(rho: float) -> None:
    logs = np.log([correlated_importance(rng(seed), 8192, rho) for seed in range(20)])
    assert logs.mean() == pytest.approx(0, abs=0.01)
    assert logs.std() == pytest.approx(1, abs=0.02)
    neighbours = np.mean(logs[:, 1:] * logs[:, :-1])
    assert neighbours == pytest.approx(rho, abs=0.03)


def test_noise_and_field_do_not_depend_on_rho() -> None:
    noise, field, half = (np.log(correlated_importance(rng(5), 512, rho)) for rho in (0.0, 1.0, 0.5))
    assert np.allclose(half, np.sqrt(0.5) * (noise + field))


def cover(starts: list[int], cluster: int, wanted: int) -> list[int]:
    """Throw clusters one by one until `wanted` tokens are covered, the last cut short; in order of cover."""
    covered: list[int] = []
    for start in starts:
        for token in range(start, start + cluster):
            if len(covered) < wanted and token not in covered:
                covered.append(token)
    assert len(covered) == wanted
    return covered


@given(st.integers(1, 60), st.data())
def test_best_tokens_are_the_clusters_thrown_until_enough_are_covered(
    tokens: int, data: st.DataObject
) -> None:
    cluster = data.draw(st.integers(1, tokens))
    wanted = data.draw(st.integers(0, tokens // 2))
    seed = data.draw(st.integers(0, 2**32))
    scores = random_clusters(rng(seed), tokens, cluster, wanted)
    # The function draws its starts in rounds of enough clusters to cover everything if none overlapped.
    state, per_round = rng(seed), -(-tokens // cluster)
    starts = [
        int(s) for _ in range(50) for s in state.integers(0, tokens - cluster, per_round, endpoint=True)
    ]
    assert np.argsort(-scores, kind="stable")[:wanted].tolist() == cover(starts, cluster, wanted)
    covered = scores[scores > 0]
    assert len(set(covered)) == len(covered) >= wanted
    assert scores.max() == tokens or wanted == 0


def test_clusters_of_one_token_are_a_uniform_draw() -> None:
    kept = np.zeros(20)
    for seed in range(3000):
        kept[np.argsort(-random_clusters(rng(seed), 20, 1, 5))[:5]] += 1
    assert kept / 3000 == pytest.approx(np.full(20, 0.25), abs=0.04)  # 5 standard errors


@pytest.mark.parametrize(
    "refused",
    [
        lambda: importance(rng(), "normal", 5),
        lambda: correlated_importance(rng(), 1, 0.5),
        lambda: correlated_importance(rng(), 0, 0.5),
        lambda: correlated_importance(rng(), 100, 1.5),
        lambda: correlated_importance(rng(), 100, float("nan")),
        lambda: correlated_importance(rng(), 100, 0.5, 0.0),
        lambda: random_clusters(rng(), 10, 11, 5),
        lambda: random_clusters(rng(), 10, 0, 5),
        lambda: random_clusters(rng(), 10, 2, 11),
        lambda: random_clusters(rng(), 10, 2, -1),
    ],
)
def test_bad_arguments_get_one_clear_line(refused) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as error:
        refused()
    assert "\n" not in str(error.value)
