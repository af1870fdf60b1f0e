"""What the page says of a measurement is true of whatever tables it is given."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_tables import EMPTY, POLICIES, matched_of, table_of, write_measured

from kvreclaim.report.folder import Folder
from kvreclaim.report.measurements import Measurements
from kvreclaim.report.sections import measured_findings as findings
from kvreclaim.report.theme import look

SHARES = st.floats(0, 1)


def measurements(frame: pl.DataFrame, matched: pl.DataFrame = EMPTY) -> Measurements:
    return Measurements(frame, matched, {})


def test_findings_of_the_usual_table(tmp_path: Path) -> None:
    measured = Measurements.of(Folder(write_measured(tmp_path)))
    first, never, kinds, matched, memory = findings.findings(measured)
    assert "2 of 12 policies free at least 1 %" in first
    assert "StreamingLLM (49 %); ChunkKV-16 (SnapKV) (8.9 %)" in first
    assert "PyramidKV (7.0 %)" in first.partition("Only after packing")[2]
    assert "Less than 1 % either way: Ada-KV (SnapKV)." in first
    assert "Not even packing frees that much for Ada-KV (SnapKV)." in never
    assert "6 of 12" in kinds
    assert "10 of 12" in kinds
    assert "without a copy, StreamingLLM has the highest median" in matched
    assert "5 prompts rank nothing" in matched
    assert "H2O (3 of 5)" in matched.partition("highest ratio")[2].partition("lowest")[0]
    assert "Random (5 of 5)" in matched.partition("lowest")[2]
    assert "StreamingLLM promises 28.5 GiB and gives back 28.0 GiB" in memory


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(POLICIES)), st.tuples(SHARES, SHARES), min_size=1))
def test_every_policy_stands_in_the_one_list_that_its_numbers_say(
    shares: dict[str, tuple[float, float]],
) -> None:
    text = findings.at_one_ratio(measurements(table_of(shares)))
    head, _, rest = text.partition("without a copy")
    free, rest = re.split(r"\. (?=Only|Less|These)", rest, maxsplit=1)
    after = (re.search(r"Only after packing: (.*?)\.(?: Less| These)", rest) or [""] * 2)[1]
    never = (re.search(r"Less than 1 % either way: (.*?)\. These", rest) or [""] * 2)[1]
    lists = {"free": names_in(free), "after": names_in(after), "never": names_in(never)}
    wanted: dict[str, set[str]] = {"free": set(), "after": set(), "never": set()}
    for policy, (zero_copy, packed) in shares.items():
        wanted["free" if zero_copy >= 0.01 else "after" if packed >= 0.01 else "never"].add(policy)
    assert lists == wanted
    count = len(wanted["free"])
    if len(shares) > 1:
        said = {0: f"none of {len(shares)} policies frees", len(shares): f"all {len(shares)} policies free"}
        assert said.get(count, f"{count} of {len(shares)} policies") in head


@cache
def _longest_first() -> tuple[tuple[str, str], ...]:
    labels = [(look(policy).label, policy) for policy in POLICIES]
    return tuple(sorted(labels, key=lambda pair: -len(pair[0])))


def names_in(text: str) -> set[str]:
    """Return the policies that a text names; each name is taken out, as some contain another's."""
    found = set()
    for label, policy in _longest_first():
        if label in text:
            found.add(policy)
            text = text.replace(label, "")
    return found


def test_a_mean_just_below_the_threshold_is_below_it() -> None:
    text = findings.at_one_ratio(measurements(table_of({"h2o": (0.00999, 0.00999), "tova": (0.01, 0.0)})))
    assert "1 of 2 policies frees at least 1 %" in text
    assert "TOVA (1.0 %)" in text
    assert "either way: H2O" in text


def test_one_policy_and_none_and_all() -> None:
    assert "the one policy does not free at least" in findings.at_one_ratio(
        measurements(table_of({"h2o": (0.0, 0.5)}))
    )
    assert "all 2 policies free" in findings.at_one_ratio(
        measurements(table_of({"h2o": (0.1, 0.5), "tova": (0.2, 0.5)}))
    )
    assert "none of 2 policies frees" in findings.at_one_ratio(
        measurements(table_of({"h2o": (0.0, 0.5), "tova": (0.0, 0.0)}))
    )


def test_unknown_packing_puts_a_policy_in_no_list() -> None:
    frame = table_of({"h2o": (0.0, 0.5), "tova": (0.0, 0.5)}).with_columns(
        packing_reclaim=pl.when(pl.col("policy") == "h2o").then("packing_reclaim")
    )
    text = findings.at_one_ratio(measurements(frame))
    assert names_in(text) == {"h2o"}


def test_what_frees_late_is_not_said_never_to_free() -> None:
    late = pl.concat(
        [
            table_of({"h2o": (0.0, 0.0), "knorm": (0.0, 0.0)}),
            table_of({"h2o": (0.3, 0.9), "knorm": (0.0, 0.2)}, (0.9,)),
        ]
    )
    measured = measurements(late)
    assert "either way: H2O and Knorm" in findings.at_one_ratio(measured)
    never = findings.over_all_ratios(measured)
    assert names_in(never) == {"knorm"}
    assert "does Knorm free" in never
    assert "Not even packing" not in never
    everyone = measurements(pl.concat([late, table_of({"knorm": (0.4, 0.4)}, (0.95,))]))
    said = "Every policy frees at least 1 % of the shared table at some ratio from 0.5 to 0.95."
    assert findings.over_all_ratios(everyone) == said


def test_ratios_other_than_a_half_are_named() -> None:
    measured = measurements(table_of({"h2o": (0.0, 0.5)}, (0.3, 0.62, 0.9)))
    assert findings.at_one_ratio(measured).startswith("Asked to evict 62 %")
    assert "At no ratio of the sweep, 0.3 to 0.9" in findings.over_all_ratios(measured)


def test_overlapping_intervals_claim_no_rank() -> None:
    rows = {"h2o": (0.4, 0.3, 0.5), "tova": (0.35, 0.2, 0.45), "knorm": (0.1, 0.0, 0.2)}
    text = findings.at_matched_quality(measurements(table_of({"h2o": (0.1, 0.1)}), matched_of(rows)))
    assert "frees the most" not in text
    assert "H2O has the highest median" in text
    assert "the interval of TOVA overlaps its own" in text
    assert "Knorm" not in text


def test_separate_intervals_claim_one() -> None:
    rows = {"h2o": (0.4, 0.36, 0.5), "tova": (0.3, 0.2, 0.35)}
    text = findings.at_matched_quality(measurements(table_of({"h2o": (0.1, 0.1)}), matched_of(rows)))
    assert "H2O frees the most, 0.4000 [0.3600, 0.5000]" in text


def test_few_prompts_rank_nothing() -> None:
    rows = {"h2o": (0.4, 0.4, 0.4), "tova": (0.3, 0.3, 0.3)}
    for prompts, said in ((1, "though 1 prompt ranks nothing"), (5, "though 5 prompts rank nothing")):
        measured = measurements(table_of({"h2o": (0.1, 0.1)}), matched_of(rows, prompts))
        assert f"H2O has the highest median, 0.4000 [0.4000, 0.4000], {said}" in (
            findings.at_matched_quality(measured)
        )


def test_touching_intervals_overlap_and_equal_medians_do() -> None:
    touching = {"h2o": (0.4, 0.35, 0.5), "tova": (0.3, 0.2, 0.35)}
    assert "overlaps" in findings.at_matched_quality(
        measurements(table_of({"h2o": (0.1, 0.1)}), matched_of(touching))
    )
    equal = {"h2o": (0.4, 0.4, 0.4), "tova": (0.4, 0.4, 0.4)}
    assert "overlaps" in findings.at_matched_quality(
        measurements(table_of({"h2o": (0.1, 0.1)}), matched_of(equal))
    )


def test_nothing_freed_at_matched_quality_names_no_winner() -> None:
    rows = {"h2o": (0.004, 0.0, 0.009), "tova": (0.0, 0.0, 0.0)}
    text = findings.at_matched_quality(measurements(table_of({"h2o": (0.1, 0.1)}), matched_of(rows)))
    assert text == "At matched quality: without a copy, no policy frees 1 % of the shared table."


def test_prompts_outside_the_sweep_are_told_by_side() -> None:
    rows = {"h2o": (0.4, 0.36, 0.5), "tova": (0.3, 0.2, 0.35), "knorm": (0.0, 0.0, 0.0)}
    matched = matched_of(rows, prompts=5, h2o=(0, 2), tova=(1, 1), knorm=(5, 0))
    text = findings.at_matched_quality(measurements(table_of({"h2o": (0.1, 0.1)}), matched))
    above, _, below = text.partition("highest ratio")[2].partition("lowest")
    assert "H2O (2 of 5) and TOVA (1 of 5)" in above
    assert "TOVA (1 of 5) and Knorm (5 of 5)" in below


def test_memory_names_the_most_and_the_least() -> None:
    measured = measurements(table_of({"h2o": (0.25, 0.5), "tova": (0.0, 0.5), "knorm": (0.1, 0.5)}))
    text = findings.in_gib(measured)
    assert "H2O promises 28.5 GiB and gives back 14.2 GiB and TOVA promises 28.5 GiB" in text
    assert "Knorm" not in text
    assert "arithmetic" in text
