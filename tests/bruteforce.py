"""Layouts small enough to enumerate, and what they free and move, counted block by block."""

from itertools import combinations


def blocks_of(row, size):
    return [row[start : start + size] for start in range(0, len(row), size)]


def freed_in(alive, size):
    return sum(not any(block) for block in blocks_of(list(alive), size))


def moved_in(alive, size):
    """Keep the fullest blocks that hold all survivors, move the rest."""
    held = sorted((sum(block) for block in blocks_of(list(alive), size)), reverse=True)
    return sum(held[-(-sum(held) // size) :])


def every_layout(tokens, evicted):
    for dead in combinations(range(tokens), evicted):
        yield [token not in dead for token in range(tokens)]
