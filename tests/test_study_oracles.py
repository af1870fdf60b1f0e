"""The study against closed forms, the ledger, and its own invariants."""

import numpy as np
import pytest
from study_run import row

from kvreclaim import bounds, policies
from kvreclaim.layout import BlockLayout
from kvreclaim.ledger import audit
from kvreclaim.scores.synthetic import DISTRIBUTIONS
from kvreclaim.study import compaction, shapes, strategies
from kvreclaim.study.measures import measure
from kvreclaim.study.rows import CLOSED_FORM
from kvreclaim.study.seeds import Seeds


@pytest.mark.parametrize("policy", ["random", "h2o"])
@pytest.mark.parametrize("block_size", [4, 8, 16, 32, 64])
def test_rare_counts_agree_with_their_exact_expectation(policy: str, block_size: int) -> None:
    expected = row("shapes", policy, block_size, "free_blocks_total", kind=CLOSED_FORM).mean
    low, high = (row("shapes", policy, block_size, f"free_blocks_{end}").mean for end in ("low", "high"))
    assert low <= expected <= high
    total = row("shapes", policy, block_size, "free_blocks_total").mean
    assert (low, high) == bounds.poisson_interval(int(total))


def test_moves_after_random_eviction_respect_the_lower_bound() -> None:
    runs = measure(compaction.random_masks(Seeds(200)), 16).moved_tokens
    bound = bounds.compaction_moves_lower_bound(8192, 4096, 16)
    assert bound == pytest.approx(1646.21, abs=0.01)
    assert runs.mean() == pytest.approx(bound, abs=4 * runs.std() / 200**0.5)


def test_each_clustered_hole_moves_the_smaller_end_and_frees_one_block() -> None:
    masks = compaction.clustered_holes(Seeds(200))
    starts = masks.array[0].argmin(axis=1)
    assert starts.min() >= 0
    assert starts.max() <= 4096
    ends = starts % 16
    runs = measure(masks, 16)
    assert runs.moved_tokens.tolist() == np.minimum(ends, 16 - ends).tolist()
    assert runs.freed_by_compaction.tolist() == (ends != 0).astype(int).tolist()
    assert runs.free_blocks.tolist() == np.where(ends == 0, 256, 255).tolist()
    per_move = compaction.hole_slots_per_move()
    assert per_move.mean() == pytest.approx(bounds.single_hole_slots_per_move(16))
    assert 1 / (1 / per_move).mean() == pytest.approx(bounds.single_hole_ratio_of_means(16))


def test_ratio_of_means_has_the_standard_error_of_a_ratio() -> None:
    found = row("compaction", "clustered-hole", 0.5, "slots_per_move_ratio_of_means")
    batches = []
    for base in range(1000, 1000 + 40 * 30, 30):
        runs = measure(compaction.clustered_holes(Seeds(30, base)), 16)
        batches.append(16 * runs.freed_by_compaction.sum() / runs.moved_tokens.sum())
    assert np.mean(batches) == pytest.approx(3.75, abs=0.2)
    assert found.std / 30**0.5 == pytest.approx(np.std(batches), rel=0.5)


def test_closed_forms_are_those_of_bounds() -> None:
    assert row("bound/B=16", "independent", 0.5, "physical_reclaim", kind=CLOSED_FORM).mean == 0.5**16
    assert row("bound/B=16", "independent", 0.76, "reclaim_efficiency", kind=CLOSED_FORM).mean == 0.76**15
    exact = row("bound/B=16", "exact", 0.5, "physical_reclaim", kind=CLOSED_FORM).mean
    assert exact == pytest.approx(1.50e-5, abs=1e-7)
    efficiency = row("bound/B=16", "exact", 0.5, "reclaim_efficiency", kind=CLOSED_FORM).mean
    assert efficiency == pytest.approx(2 * exact)
    assert np.isnan(row("bound/B=4", "exact", 0.0, "reclaim_efficiency", kind=CLOSED_FORM).mean)
    gap = row("correlation", "gap", 1.0, "gap_to_block_wise", kind=CLOSED_FORM).mean
    assert gap == pytest.approx(0.0338, abs=1e-4)


def test_measures_are_the_audit_of_each_run() -> None:
    seeds = Seeds(4)
    kept = shapes.budgets(4, 808, 0.5)
    masks = shapes.stack(shapes.snapkv(s, ("test",), 808, b) for s, b in zip(seeds, kept, strict=True))
    runs = measure(masks, 16)
    for run, keep in enumerate(masks.array[0]):
        ledger = audit(keep, BlockLayout(16))
        assert runs.blocks == ledger.blocks
        assert runs.physical_reclaim[run] == ledger.physical_reclaim
        assert runs.logical_saving[run] == pytest.approx(ledger.logical_saving)
        assert runs.reclaim_efficiency[run] == pytest.approx(ledger.reclaim_efficiency)
        assert runs.fragmentation[run] == pytest.approx(ledger.fragmentation)
        assert runs.moved_tokens[run] == ledger.compaction.moved_tokens
        assert runs.freed_by_compaction[run] == ledger.compaction.freed_blocks
        assert runs.slots_per_move[run] == pytest.approx(ledger.compaction.slots_per_move)


def test_block_wise_needs_no_copy() -> None:
    assert row("compaction", "block-wise", 0.5, "moved_tokens").mean == 0
    undefined = row("compaction", "block-wise", 0.5, "slots_per_move")
    assert np.isnan(undefined.mean)
    assert undefined.n == 0
    assert row("compaction", "block-wise", 0.5, "free_at_eviction").mean == 256


def test_copy_cost_is_in_bytes_of_the_named_model() -> None:
    moved = row("compaction", "random", 0.5, "moved_tokens").mean
    assert row("compaction", "random", 0.5, "moved_bytes").mean == pytest.approx(131072 * moved)


@pytest.mark.parametrize("policy", ["random", "block-wise"])
def test_their_reclaim_does_not_depend_on_the_distribution(policy: str) -> None:
    for q in strategies.RATIOS:
        found = {row(f"strategies/{d}", policy, q, "physical_reclaim").mean for d in DISTRIBUTIONS}
        assert len(found) == 1


@pytest.mark.parametrize("q", [0.7, 0.8, 0.9])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_lowest_importance_has_the_random_law(distribution: str, q: float) -> None:
    lowest = row(f"strategies/{distribution}", "lowest-importance", q, "physical_reclaim")
    law = bounds.random_reclaim(8192, round(q * 8192), 16)
    assert lowest.mean == pytest.approx(law, abs=4 * lowest.std / 30**0.5)
    assert row("strategies/lognormal", "random", q, "physical_reclaim").mean == pytest.approx(
        law, abs=4 * lowest.std / 30**0.5
    )


def test_lowest_importance_sees_only_the_order_of_the_scores() -> None:
    scores = strategies.importance_of(Seeds(2), "lognormal")
    policy = policies.get("lowest-importance")
    assert np.array_equal(policy.select(scores, 4096).array, policy.select(np.sqrt(scores), 4096).array)


def test_every_strategy_has_the_same_logical_saving() -> None:
    for policy in ("random", "lowest-importance", "block-wise", "reclaimability-aware"):
        found = row("strategies/uniform", policy, 0.3, "logical_saving")
        assert (found.mean, found.std) == (pytest.approx(round(0.3 * 8192) / 8192), 0)


def test_budgets_have_the_target_as_their_mean() -> None:
    kept = shapes.budgets(30, 800, 0.5)
    assert np.mean(kept) == pytest.approx(400, abs=0.5)
    assert kept == sorted(kept)
    assert np.std(kept) / 800 == pytest.approx(0.0196, abs=0.0002)
