"""The audit of real keep masks: SmolLM2-135M, three prompts of 1,024 tokens, ratio .5, blocks of 16."""

from pathlib import Path

import pytest

from kvreclaim.audits import audit_files
from kvreclaim.layout import BLOCK_TABLES, BlockLayout

MASKS = sorted((Path(__file__).parent.parent / "examples" / "masks").glob("*.npz"))

# policy: mean physical reclaim with zero copies per head, per layer, shared
ZERO_COPY = {
    "streaming-llm": (0.484, 0.484, 0.484),
    "snapkv": (0.199, 0.074, 0.000),
    "pyramidkv": (0.294, 0.204, 0.000),
    "chunkkv-16": (0.500, 0.500, 0.083),
    "h2o": (0.013, 0.001, 0.000),
    "tova": (0.028, 0.028, 0.000),
}
PACKED = {
    "snapkv": 0.500,
    "h2o": 0.500,
    "tova": 0.500,
    "streaming-llm": 0.500,
    "pyramidkv": 0.062,
    "adakv-snapkv": 0.068,
    "adakv-expected-attention": 0.000,
}


@pytest.fixture(scope="module")
def ledgers():
    assert len(MASKS) == 3
    return [row.ledger for row in audit_files(MASKS, [BlockLayout(16, tables) for tables in BLOCK_TABLES])]


def mean(ledgers, policy, tables, figure):
    values = [figure(found) for found in ledgers if (found.policy, found.block_tables) == (policy, tables)]
    assert len(values) == 3
    return sum(values) / 3


@pytest.mark.parametrize(("policy", "expected"), ZERO_COPY.items())
def test_zero_copy_reclaim(ledgers, policy, expected):
    found = [
        mean(ledgers, policy, tables, lambda ledger: ledger.physical_reclaim)
        for tables in ("per_head", "per_layer", "shared")
    ]
    assert found == pytest.approx(expected, abs=0.0005)


@pytest.mark.parametrize(("policy", "expected"), PACKED.items())
def test_reclaim_after_packing_in_a_shared_table(ledgers, policy, expected):
    assert mean(ledgers, policy, "shared", lambda ledger: ledger.packing.physical_reclaim) == pytest.approx(
        expected, abs=0.0006
    )


def test_every_policy_is_there(ledgers):
    assert len({found.policy for found in ledgers}) == 16
