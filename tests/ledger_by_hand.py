"""Slow, obvious answers from the definitions alone; nothing here uses the code under test."""

from __future__ import annotations

from itertools import product
from math import ceil


def tables_of(layers, heads, block_tables, groups):
    """The (layer, head) pairs of each table, as lists."""
    groups = groups or [(range(layers), None)]
    if block_tables == "shared":
        return [[(layer, head) for layer in members for head in range(heads)] for members, _window in groups]
    if block_tables == "per_layer":
        return [[(layer, head) for head in range(heads)] for layer in range(layers)]
    return [[pair] for pair in product(range(layers), range(heads))]


def windowed(keep, groups):
    """A copy of the mask, as nested lists, in which tokens outside their layer's window are dead."""
    live = keep.tolist()
    for members, window in groups or []:
        for layer in members:
            for row in live[layer]:
                for token in range(len(row) - (window or len(row))):
                    row[token] = False
    return live


def ledger(keep, block_size, block_tables, groups=None):
    """The ledger of a mask ``[layers, heads, tokens]``, token by token."""
    layers, heads, tokens = keep.shape
    live = windowed(keep, groups)
    starts = range(0, tokens, block_size)
    found = dict.fromkeys(
        ("blocks", "free", "live_union", "filled", "min_blocks", "freed", "moved", "needed", "moved_pairs"), 0
    )
    for pairs in tables_of(layers, heads, block_tables, groups):
        union = [any(live[layer][head][token] for layer, head in pairs) for token in range(tokens)]
        in_block = [sum(union[start : start + block_size]) for start in starts]
        filled = [len(union[start : start + block_size]) * len(pairs) for start in starts]
        pairs_in_block = [
            sum(sum(live[layer][head][start : start + block_size]) for layer, head in pairs)
            for start in starts
        ]
        least = ceil(sum(in_block) / block_size)
        needed = ceil(max(sum(live[layer][head]) for layer, head in pairs) / block_size)
        found["blocks"] += len(in_block)
        found["free"] += in_block.count(0)
        found["live_union"] += sum(in_block)
        found["filled"] += sum(size for size, count in zip(filled, in_block, strict=True) if count)
        found["min_blocks"] += least
        found["freed"] += len(in_block) - in_block.count(0) - least
        found["moved"] += sum(sorted(in_block, reverse=True)[least:])
        found["needed"] += needed
        found["moved_pairs"] += sum(sorted(pairs_in_block, reverse=True)[needed:])
    found["live_pairs"] = sum(sum(row) for layer in live for row in layer)
    return found


def freed_by_moves(in_block, block_size, most_moves):
    """The most blocks freed with 0, 1, ... ``most_moves`` single-token moves, by search over all states."""
    start = tuple(sorted(in_block))
    empty = start.count(0)
    best, seen, frontier = [], {start}, {start}
    for _moves in range(most_moves + 1):
        reached = max((state.count(0) for state in frontier), default=0) - empty
        best.append(max([reached, *best]))
        frontier = {after for state in frontier for after in _moved(state, block_size)} - seen
        seen |= frontier
    return best


def _moved(state, block_size):
    for source, destination in product(range(len(state)), repeat=2):
        if source != destination and state[source] > 0 and state[destination] < block_size:
            after = list(state)
            after[source] -= 1
            after[destination] += 1
            yield tuple(sorted(after))
