"""Rows found again by their hashes: any order, marks, equal rows, and rows that are none of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import torch

from kvreclaim import InputError
from kvreclaim.capture.rows.match import match, rows_of


def random_rows(heads, rows, width=8, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, 1, heads, rows, width, generator=generator).to(dtype)
    return keys, values


def gathered(rows, places):
    return rows.gather(2, places[None, :, :, None].expand(1, -1, -1, rows.shape[-1]))


@given(st.integers(1, 3), st.integers(1, 40), st.data())
def test_survivors_are_found_in_any_order(heads, rows, data):
    keys, values = random_rows(heads, rows)
    kept = data.draw(st.integers(1, rows))
    places = torch.stack([torch.tensor(data.draw(st.permutations(range(rows)))[:kept]) for _ in range(heads)])
    found = match(rows_of(keys, values), rows_of(gathered(keys, places), gathered(values, places)))
    expected = torch.zeros(heads, rows, dtype=torch.bool).scatter_(1, places, True)
    assert torch.equal(found.keep, expected)
    assert found.ambiguous == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.data())
def test_of_equal_rows_as_many_are_kept_as_survive_the_latest_first(kinds, data):
    keys, values = random_rows(1, 4)
    written = torch.tensor(kinds)[None]
    kept = torch.tensor([data.draw(st.lists(st.sampled_from(range(len(kinds))), min_size=1, unique=True))])
    before = rows_of(gathered(keys, written), gathered(values, written))
    left = written.gather(1, kept)
    found = match(before, rows_of(gathered(keys, left), gathered(values, left)))
    assert found.keep.sum() == kept.shape[1]
    unclear = 0
    for kind in set(kinds):
        places = [place for place, other in enumerate(kinds) if other == kind]
        survivors = int((left == kind).sum())
        assert found.keep[0, places].tolist() == [False] * (len(places) - survivors) + [True] * survivors
        unclear += survivors if 0 < survivors < len(places) else 0
    assert found.ambiguous == unclear


def test_equal_keys_with_other_values_are_other_rows():
    keys, values = random_rows(1, 2)
    keys[0, 0, 1] = keys[0, 0, 0]
    found = match(rows_of(keys, values), rows_of(keys[:, :, :1], values[:, :, :1]))
    assert found.keep.tolist() == [[True, False]]
    assert found.ambiguous == 0


def test_rows_marked_dead():
    keys, values = random_rows(2, 5)
    alive = torch.tensor([[True, False, True, True, False], [False, True, True, True, True]])
    before = rows_of(keys, values)
    assert torch.equal(match(before, before, alive).keep, alive)
    backwards = torch.arange(4, -1, -1).expand(2, 5)
    after = rows_of(gathered(keys, backwards), gathered(values, backwards))
    assert torch.equal(match(before, after, alive).keep, alive.flip(1))
    overwritten = keys.clone()
    overwritten[0, ~alive] = 0  # what a press writes over dead rows is its own affair
    assert torch.equal(match(before, rows_of(overwritten, values), alive).keep, alive)


@pytest.mark.parametrize(
    "keys, values, said",
    [
        (2.0, 1.0, "it rewrites keys, re-rotated"),
        (1.0, 2.0, "it rewrites values, as a merge"),
        (2.0, 2.0, "keys and values"),
    ],
)
def test_rewritten_rows_are_refused(keys, values, said):
    k, v = random_rows(2, 6)
    with pytest.raises(InputError, match=said):
        match(rows_of(k, v), rows_of(k[:, :, :3] * keys, v[:, :, :3] * values))


def test_a_doubled_row_is_refused():
    k, v = random_rows(1, 4)
    places = torch.tensor([[1, 1]])
    with pytest.raises(InputError, match="rewrites"):
        match(rows_of(k, v), rows_of(gathered(k, places), gathered(v, places)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_every_number_counts(dtype, width):
    keys, values = random_rows(1, 1, width, dtype)
    seen = set()
    for place in range(width):
        changed = keys.clone()
        changed[..., place] += 1
        seen.add(int(rows_of(changed, values).keys))
    assert len(seen | {int(rows_of(keys, values).keys)}) == width + 1


def test_hashes_are_the_same_in_every_process():
    keys = torch.arange(8, dtype=torch.float32).reshape(1, 1, 1, 8)
    assert int(rows_of(keys, keys).keys) == int(rows_of(keys.clone(), keys).values)
    assert int(rows_of(keys, keys).keys) == -2581362131475628032
