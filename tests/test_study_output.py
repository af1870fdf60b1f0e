"""What the study hands over: equal bytes from equal seeds, tables, faults, block maps."""

import json
import subprocess
import sys
from io import StringIO
from zlib import crc32

import numpy as np
import polars as pl
import pytest
from study_run import study

from kvreclaim import bounds, policies
from kvreclaim.errors import InputError
from kvreclaim.study import shapes
from kvreclaim.study.blockmaps import RATIOS as BLOCK_MAP_RATIOS
from kvreclaim.study.faults import FAULTS
from kvreclaim.study.reproduce import EXPERIMENTS, reproduce
from kvreclaim.study.rows import CLOSED_FORM, SIMULATED, mean_and_std
from kvreclaim.study.seeds import generator, stream

SUMMARY_COLUMNS = ["experiment", "policy", "x_name", "x", "metric", "kind", "mean", "std", "n"]
PUBLISHED_COLUMNS = [
    *("id", "quantity", "published", "reproduced", "std", "n", "oracle", "tolerance", "status"),
]


def test_equal_seeds_give_equal_bytes_in_any_number_of_processes() -> None:
    files = reproduce(seeds=2, seed_base=5).files()
    assert sorted(files) == ["interactive_data.json", "published.csv", "results_summary.csv"]
    assert reproduce(seeds=2, seed_base=5).files() == files
    assert reproduce(seeds=2, seed_base=5, jobs=2).files() == files
    assert reproduce(seeds=2, seed_base=6).files() != files


def test_streams_differ_by_experiment_method_and_setting() -> None:
    streams = {
        stream(0, *parts) for parts in [("a", "b"), ("a", "c"), ("b", "b"), ("a", "b", 4), ("a", "b", 8)]
    }
    assert len(streams) == 5
    assert generator(3, "a").random() == np.random.default_rng(stream(3, "a")).random()
    assert stream(7, "strategies", 16) == (7, crc32(b"strategies"), 16)


def test_progress_is_told_of_every_experiment() -> None:
    told: list[tuple[int, int, str]] = []
    reproduce(seeds=1, progress=lambda *state: told.append(state))
    assert [name for _, _, name in told] == list(EXPERIMENTS)
    assert [done for done, _, _ in told] == list(range(1, len(EXPERIMENTS) + 1))
    assert {total for _, total, _ in told} == {len(EXPERIMENTS)}


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"seeds": 1.5}, {"seed_base": -1}, {"jobs": 0}])
def test_bad_counts_get_one_clear_line(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"^[^\n]+$"):
        reproduce(**wrong)


def test_the_experiments_need_numpy_alone() -> None:
    program = "import sys, kvreclaim.study.reproduce; print('polars' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_tables_have_the_documented_columns() -> None:
    files = study().files()
    summary = pl.read_csv(StringIO(files["results_summary.csv"]))
    published = pl.read_csv(StringIO(files["published.csv"]))
    assert summary.columns == SUMMARY_COLUMNS
    assert published.columns == PUBLISHED_COLUMNS
    assert len(summary) == len(study().rows)
    assert set(summary["kind"]) == {CLOSED_FORM, SIMULATED}
    assert summary.select("experiment", "policy", "x", "metric", "kind").is_unique().all()


def test_interactive_data_is_strict_json_with_null_for_nan() -> None:
    data = json.loads(study().files()["interactive_data.json"], parse_constant=lambda name: pytest.fail(name))
    assert data["schema"] == 1
    assert len(data["rows"]) == len(study().rows)
    assert list(data["published"][0]) == PUBLISHED_COLUMNS
    undefined = [r for r in data["rows"] if r["mean"] is None]
    assert {r["metric"] for r in undefined} >= {"slots_per_move", "reclaim_efficiency"}
    assert all(r["n"] == 0 for r in undefined)


def test_faults_name_a_section_of_the_page() -> None:
    experiments = {row.experiment.split("/")[0] for row in study().rows}
    assert {fault.section for fault in FAULTS} <= experiments
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
    assert json.loads(study().files()["interactive_data.json"])["faults"][0]["section"] == "bound"


def test_what_the_faults_say_of_closed_forms() -> None:
    said = " ".join(fault.text for fault in FAULTS)
    for tokens, less in ((8192, "1.5 %"), (800, "14 %"), (64, "92 %")):
        assert f"{less} less" in said
        ratio = bounds.random_reclaim(tokens, tokens // 2, 16) / bounds.independent_reclaim(0.5, 16)
        assert 100 * (1 - ratio) == pytest.approx(float(less.removesuffix(" %")), abs=0.5)
    assert bounds.independent_reclaim(15 / 16, 16) == pytest.approx(0.36, abs=0.005)
    assert bounds.freed_range(8192, 8192 * 15 // 16, 16)[0] == 0
    fixed = [bounds.streaming_llm_freed(800, 4, budget, 64) / 13 for budget in shapes.budgets(30, 800, 0.5)]
    assert np.mean(fixed) == pytest.approx(0.372, abs=0.0005)


def test_block_maps_show_every_policy_at_every_ratio() -> None:
    assert [block_map["id"] for block_map in study().block_maps] == list(policies.names()[:7])
    for block_map in study().block_maps:
        assert (block_map["tokens"], block_map["block_size"]) == (512, 16)
        assert [frame["compression_ratio"] for frame in block_map["frames"]] == list(BLOCK_MAP_RATIOS)
        for frame in block_map["frames"]:
            keep = np.unpackbits(np.frombuffer(bytes.fromhex(frame["keep"]), np.uint8)).astype(bool)
            assert keep.sum() == policies.budget_at(512, frame["compression_ratio"])
            blocks = keep.reshape(32, 16)
            assert frame["free_blocks"] == (~blocks.any(axis=1)).sum()
            for source, destination in frame["compaction"]["moves"]:
                assert keep[source]
                assert not keep[destination]


def test_rows_leave_undefined_runs_out() -> None:
    assert mean_and_std([1.0, np.nan, 3.0]) == (2.0, 1.0, 2)
    assert mean_and_std([0.1, 0.1, 0.1]) == (0.1, 0.0, 3)
    mean, std, count = mean_and_std([np.nan])
    assert (np.isnan(mean), np.isnan(std), count) == (True, True, 0)
