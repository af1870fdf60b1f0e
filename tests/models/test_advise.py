"""Advice on a tiny model: rows against masks and caches made again, the user's own loss, gone on with."""

import json
import math

import numpy as np
import pytest
import tiny_model
from small_models import prefill, random_ids, smollm2, tiny_llama, torch

from kvreclaim import BlockLayout, InputError, KeepMask, audit
from kvreclaim.advise.run import advise
from kvreclaim.advise.settings import AdviceSettings, candidates
from kvreclaim.capture.quality import Continuation
from kvreclaim.capture.quality.quantised import bytes_saved, quantised

SWAP = "block-swap:copies=0.05:last-queries"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "text").write_text(tiny_model.text(3000))
    return tiny_model.save(tiny_llama(), folder / "llama"), folder / "text"


def settings(tiny, **other):
    model, text = tiny
    given = {"copy_budget": 0.05, "context": 192, "prompts": 3, "next_tokens": 16, "trials": 3}
    return AdviceSettings(model=str(model), texts=(str(text),), **{**given, **other})


@pytest.fixture(scope="module")
def advised(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("advice") / "out"
    return advise(settings(tiny), out), out


def test_every_candidate_and_format_has_a_row(tiny, advised):
    advice, out = advised
    assert {row.candidate for row in advice.rows} == {*candidates(settings(tiny)), "fp8", "int8"}
    assert [row.loss for row in advice.rows] == sorted(row.loss for row in advice.rows)
    assert json.loads((out / "advice.json").read_text())["rows"][0]["candidate"] == advice.rows[0].candidate
    files = {"advice.csv", "advice.json", "interactive_data.json", "run.json", "cells", "masks", "losses"}
    assert {file.name for file in out.iterdir()} == files


def test_rows_are_the_audit_of_the_saved_masks(tiny, advised):
    advice, out = advised
    for name, file in (
        ("block-joint:last-queries", "block-joint+last-queries"),
        (SWAP, SWAP.replace(":", "+")),
    ):
        row = next(row for row in advice.rows if row.candidate == name)
        masks = [KeepMask.load(out / f"masks/prompt-{n}/ratio-0.5/{file}.npz") for n in (1, 2, 3)]
        ledgers = [audit(mask, BlockLayout(16)) for mask in masks]
        assert row.physical_reclaim == np.mean([one.packing.physical_reclaim for one in ledgers]) == 0.5
        moved = [one.packing.moved_pairs / mask.array.size for one, mask in zip(ledgers, masks, strict=True)]
        assert row.moved_fraction == pytest.approx(np.mean(moved))
        cells = [json.loads((out / f"cells/prompt-{n}/ratio-0.5/{file}.json").read_text()) for n in (1, 2, 3)]
        assert row.kl == pytest.approx(np.mean([cell["kl"] for cell in cells]))
    snapkv = next(row for row in advice.rows if row.candidate == "snapkv")
    assert snapkv.kl_ratio_to_snapkv == 1.0
    assert snapkv.physical_reclaim < 0.5


def test_what_copies_more_than_allowed_counts_by_what_it_frees_without(advised):
    advice, _ = advised
    blend = next(row for row in advice.rows if row.policy == "blend:last-queries")
    assert blend.moved_fraction == 0.0 or blend.moved_fraction <= 0.05
    for row in advice.rows:
        assert row.moved_fraction <= 0.05


def test_one_that_frees_enough_is_recommended(advised):
    advice, _ = advised
    (recommended,) = [row for row in advice.rows if row.recommended]
    assert recommended.candidate == advice.choice.recommended
    assert recommended.physical_reclaim == 0.5
    assert recommended.pareto
    assert advice.choice.reason.startswith(recommended.candidate)


def test_requests_and_memory(tiny, advised):
    """4 bytes × 2 (K, V) × 3 layers × 2 heads × 8 = 384 bytes a token, 192 tokens, half of them freed."""
    advice, _ = advised
    joint = next(row for row in advice.rows if row.candidate == "block-joint:last-queries")
    assert joint.gib == 8.0
    assert joint.admitted == (16 << 30) // (384 * 192 // 2)


def test_the_same_again_reads_what_is_there(tiny, advised, monkeypatch):
    advice, out = advised

    def fails(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr("kvreclaim.advise.losses.quantised", fails)
    assert advise(settings(tiny), out) == advice


def test_a_users_own_loss_decides(tiny, tmp_path, monkeypatch):
    """By an evaluation that punishes a kept token 100 in layer 0, head 0, and every format."""
    (tmp_path / "own_loss.py").write_text(
        "def loss(reader):\n"
        "    assert len(reader.generate(reader.next_ids[:2], limit=3)) == 3\n"
        "    assert reader.logits(reader.next_ids[:2]).shape == (2, 97)\n"
        "    return 1.0 if reader.mask is None else float(reader.mask.array[0, 0, 100])\n"
    )
    monkeypatch.chdir(tmp_path)
    advice = advise(settings(tiny, matters="own_loss:loss"), tmp_path / "out")
    by_name = {row.candidate: row for row in advice.rows}
    assert by_name["fp8"].loss == 1.0
    for name in candidates(settings(tiny)):
        file = name.replace(":", "+")
        masks = [KeepMask.load(tmp_path / f"out/masks/prompt-{n}/ratio-0.5/{file}.npz") for n in (1, 2, 3)]
        assert by_name[name].loss == pytest.approx(np.mean([mask.array[0, 0, 100] for mask in masks]))


def test_needles_decide_on_a_model_that_retrieves(tmp_path):
    smollm2()  # skipped where it is not
    asked = AdviceSettings(
        "smollm2-135m", matters="retrieval", context=256, prompts=1, next_tokens=8, trials=2, copy_budget=0
    )
    advice = advise(asked, tmp_path)
    trials = [json.loads((tmp_path / f"losses/trial-{n}.json").read_text()) for n in range(2)]
    solved = [trial for trial in trials if trial]  # the others the full cache missed, too
    assert {row.candidate for row in advice.rows} == {*candidates(asked), "fp8", "int8"}
    for row in advice.rows:
        missed = np.mean([trial[row.candidate]["loss"] for trial in solved])
        assert (row.loss, row.needle) == (missed, 1 - missed)
    assert min(row.loss for row in advice.rows) == 0.0
    assert f"on {len(solved)} needles" in advice.choice.reason


def test_retrieval_needs_a_model_that_retrieves(tiny, tmp_path):
    with pytest.raises(InputError, match=r"too short for its needles|finds none of 3 needles"):
        advise(settings(tiny, matters="retrieval"), tmp_path / "out")


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"matters": "no_such_module:loss"}, "can't be imported"),
        ({"matters": "math:pi"}, "is no function"),
        ({"block_size": 64}, "in whole blocks of 64"),
        ({"policies": ("snapcv",)}, "no press 'snapcv'"),
    ],
)
def test_bad_input_gets_one_clear_line(tiny, tmp_path, other, says):
    with pytest.raises(InputError, match=says) as error:
        advise(settings(tiny, **other), tmp_path / "out")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"ratio": 0.0}, "ratio"),
        ({"copy_budget": 1.5}, "copy_budget"),
        ({"block_tables": "none"}, "per_head"),
        ({"matters": "quality"}, "module:function"),
        ({"pool_gib": math.nan}, "pool_gib"),
        ({"trials": 0}, "trials"),
    ],
)
def test_settings_out_of_range(other, says):
    with pytest.raises(InputError, match=says):
        AdviceSettings("m", **other)


def test_the_remedies_decide_by_the_runtimes_tables():
    asked = AdviceSettings("m", block_size=32, block_tables="per_layer", copy_budget=0.0)
    assert "block-joint:block_size=32:block_tables=per_layer:last-queries" in candidates(asked)
    assert not any(name.startswith(("block-swap", "blend")) for name in candidates(asked))


def test_eight_bits_are_what_a_runtime_would_hold():
    cache = prefill(tiny_llama(), random_ids(40))
    eight = quantised(cache, "int8")
    keys, rounded = cache.layers[1].keys, eight.layers[1].keys
    step = keys.abs().amax(-1, keepdim=True) / 127
    assert ((rounded - keys).abs() <= 0.5 * step * 1.01 + 1e-7).all()
    levels = rounded / (keys.abs().amax(-1, keepdim=True) / 127).half().float()
    torch.testing.assert_close(levels, levels.round(), atol=1e-3, rtol=0)
    fp8 = quantised(cache, "fp8").layers[2].values
    scale = cache.layers[2].values.abs().max() / 448
    codes = (fp8 / scale).to(torch.float8_e4m3fn).float()
    torch.testing.assert_close(codes * scale, fp8)
    assert torch.equal(cache.layers[2].values, prefill(tiny_llama(), random_ids(40)).layers[2].values)
    assert bytes_saved("fp8", 64) == 0.5
    assert bytes_saved("int8", 64) == pytest.approx(1 - 66 / 128)
    with pytest.raises(InputError, match="fp8, int8"):
        quantised(cache, "int4")
    with pytest.raises(InputError, match="fp8, int8"):
        bytes_saved("int4", 64)


def test_a_cache_in_eight_bits_is_judged_beside_the_full_one():
    model = tiny_llama()
    cache = prefill(model, random_ids(60))
    judge = Continuation(model, cache, random_ids(12, seed=1)[0])
    assert judge.quality_of_cache(cache).kl == pytest.approx(0, abs=1e-9)
    eight, coarse = (judge.quality_of_cache(quantised(cache, name)).kl for name in ("int8", "fp8"))
    assert 0 < eight < coarse
