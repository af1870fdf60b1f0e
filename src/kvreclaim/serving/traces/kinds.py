"""Kinds of trace files, by their columns."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kvreclaim.errors import InputError


@dataclass(frozen=True)
class Kind:
    """The columns of one kind of trace.

    Parameters
    ----------
    name
        What it is called.
    prompt, output
        Columns of token counts.
    arrival
        Column of arrival times; None where a file has lengths only.
    seconds
        Seconds of one unit of the arrivals; None where they are dates with times.
    hashes, block_tokens
        Column with a list of prefix hashes, and the tokens that each stands for.
    mark
        A further column that tells it from another kind.
    ordered
        Whether a row that arrives before the one above is a fault; else rows are sorted.
    """

    name: str
    prompt: str
    output: str
    arrival: str | None
    seconds: float | None = 1.0
    hashes: str | None = None
    block_tokens: int = 0
    mark: str | None = None
    ordered: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """All the columns that are read or looked for."""
        found = (self.arrival, self.prompt, self.output, self.hashes, self.mark)
        return tuple(column for column in found if column is not None)


# A kind that needs more columns stands before one that needs fewer of the same.
KINDS = (
    Kind("azure", "ContextTokens", "GeneratedTokens", "TIMESTAMP", seconds=None),
    Kind("burstgpt", "Request tokens", "Response tokens", "Timestamp"),
    Kind("bailian", "input_length", "output_length", "timestamp", 1.0, "hash_ids", 16, mark="chat_id"),
    Kind("mooncake", "input_length", "output_length", "timestamp", 1e-3, "hash_ids", 512),
    Kind("vidur", "num_prefill_tokens", "num_decode_tokens", "arrived_at"),
    Kind("vidur-lengths", "num_prefill_tokens", "num_decode_tokens", None, mark="pd_ratio"),
    Kind("vllm-run", "input_toks", "output_toks", "queued_ts", ordered=False),
    Kind("plain", "prompt", "output", "arrival"),
)


def kind_of(columns: Collection[str], file: str) -> Kind:
    """Return the kind of trace that has these columns.

    Raises
    ------
    InputError
        If none has.
    """
    for kind in KINDS:
        if set(kind.columns) <= set(columns):
            return kind
    shown = ", ".join(list(columns)[:6]) or "none"
    raise InputError(
        f"{file}: its columns ({shown}) are of no known trace; pass columns arrival,prompt,output "
        "(seconds and tokens), or a trace of Azure, Mooncake, BurstGPT, vidur or vLLM"
    )
