"""Hypothesis strategies that several tests share."""

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

block_sizes = st.integers(1, 8)


def keeps(length: int) -> st.SearchStrategy[list[bool]]:
    """Keep flags of one row of tokens: long runs as often as scatter, so that whole blocks die."""
    runs = st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=length)
    scatter = st.lists(st.booleans(), min_size=length, max_size=length)
    return st.one_of(scatter, runs.map(lambda pairs: _cut(pairs, length)))


def _cut(runs: list[tuple[bool, int]], length: int) -> list[bool]:
    flags = [alive for alive, times in runs for _ in range(times)][:length]
    return flags + [False] * (length - len(flags))


@st.composite
def keep_arrays(draw: st.DrawFn) -> NDArray[np.bool_]:
    """Keep masks ``[layers, kv_heads, tokens]`` of odd sizes, whole blocks dead as often as not."""
    layers, heads, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 70))
    rows = [draw(keeps(tokens)) for _ in range(layers * heads)]
    return np.array(rows, bool).reshape(layers, heads, tokens)


@st.composite
def layer_groups(draw: st.DrawFn, layers: int) -> list[tuple[tuple[int, ...], int | None]]:
    """Layers dealt to groups, each with a window or none; no group at all stands for one of all layers."""
    order = draw(st.permutations(range(layers)))
    cut = draw(st.integers(0, layers))
    members = [tuple(part) for part in (order[:cut], order[cut:]) if part]
    groups = [(part, draw(st.none() | st.integers(1, 80))) for part in members]
    return draw(st.sampled_from([[], groups]))
