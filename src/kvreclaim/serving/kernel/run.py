"""Both paths of the kernel, each where it is right."""

from __future__ import annotations

from numba import njit

from kvreclaim.serving.kernel.aggregated import aggregated
from kvreclaim.serving.kernel.exact import exact
from kvreclaim.serving.kernel.steps import AMPLE, SHORT


@njit(cache=True, nogil=True)
def run(requests, limits, costs, rule, blocks, groups, state, ring):
    """Run until all requests are done, the rows for samples are full, or the next request is wanted.

    Answers `steps.ALL_DONE`, `ROWS_FULL` or `HUNGRY`; after the latter two, pass more and go on.

    Parameters
    ----------
    requests, limits, costs, state
        See `kernel.state`.
    rule
        A `Rule`, or None where nothing is evicted.
    blocks
        `identity.Blocks` where it matters which block is whose, else None.
    groups
        `windows.Groups`, the groups of layers; None: one that sees all tokens.
    ring
        For the aggregated path, see there; empty: the exact path alone.
    """
    if blocks is not None or groups is not None:
        return exact(requests, limits, costs, rule, blocks, groups, state, False)
    if ring.size == 0 or limits.max_seqs > limits.max_tokens:
        return exact(requests, limits, costs, rule, None, None, state, False)
    while True:
        answer = aggregated(requests, limits, costs, rule, state, ring)
        if answer == SHORT:
            answer = exact(requests, limits, costs, rule, None, None, state, True)
        if answer != AMPLE:
            return answer
