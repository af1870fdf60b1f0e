"""The table of ``kvreclaim observe``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvreclaim.cli.output import MISSING, plain_table, printable
from kvreclaim.runtimes.observation import FIGURES, MASKS, Observation, Scenario

if TYPE_CHECKING:
    from rich.table import Table

CAPTION = (
    "Observed, and in brackets what the scheduler's rules predict (simulated). Equal: these figures, each "
    "eviction, the blocks freed of each request, and free blocks and queues at every step."
)
NOT_PREDICTED = "Observed. The rules of this runtime are not known here, so nothing is predicted."
JUDGED = (
    "KL, measured, in nats, median over the requests: of the model with the pairs that the policy asked to "
    "keep, and with those that attention sees."
)
SHORT = {
    "peak_running": "peak\nruns",
    "steps": "steps",
    "blocks_freed": "blocks\nfreed",
    "preemptions": "pre-\nempted",
}


def observed_table(scenario: Scenario, observations: Sequence[Observation]) -> Table:
    """Return a row per run: what was observed, and what was predicted of it."""
    judged = any(seen.kl for seen in observations)
    told = CAPTION if observations[0].predicted is not None else NOT_PREDICTED
    table = plain_table(
        f"{scenario.requests} requests of {scenario.prompt_tokens} tokens and {scenario.max_tokens} more, "
        f"{scenario.pool_blocks} blocks of {scenario.block_size}, in {observations[0].runtime}",
        f"{told} {JUDGED}" if judged else told,
    )
    table.add_column("evicted", overflow="fold", min_width=13)
    for heading in SHORT.values():
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("moved\nMiB", justify="right", no_wrap=True)
    if judged:
        table.add_column("KL\nasked", justify="right", no_wrap=True)
        table.add_column("KL\nseen", justify="right", no_wrap=True)
    table.add_column("equal", overflow="fold")
    for seen in observations:
        table.add_row(
            _evicted(seen),
            *(_beside(seen, figure) for figure in FIGURES if figure in SHORT),
            MISSING if seen.moved_bytes is None else f"{seen.moved_bytes / 2**20:.1f}",
            *(_kl(seen, name) for name in MASKS if judged),
            _verdict(seen),
        )
    return table


def _evicted(seen: Observation) -> str:
    if seen.mode is None and seen.budget is None:
        return "nothing"
    again = "" if seen.buffer is None else f" + {seen.buffer}"
    return printable(f"{seen.policy} {seen.budget}{again}{'' if seen.mode is None else f' {seen.mode}'}")


def _beside(seen: Observation, figure: str) -> str:
    value = seen.observed[figure]
    predicted = "" if seen.predicted is None else f" ({seen.predicted[figure]})"
    return f"{MISSING if value is None else value}{predicted}"


def _kl(seen: Observation, name: str) -> str:
    return MISSING if seen.kl is None else f"{seen.kl[name].median:.4f}"


def _verdict(seen: Observation) -> str:
    if seen.unequal is None:
        return MISSING
    return "yes" if not seen.unequal else f"no: {', '.join(seen.unequal).replace('_', ' ')}"
