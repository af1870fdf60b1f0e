"""``kvreclaim bound``: the closed forms for one ratio, block size and length."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from kvreclaim.cli.output import Json, console, emit_json, percent, plain_table

SINKS = 4
RECENT_SHARE = 0.5
CLUSTER_LENGTH = 12
MOST_TOKENS_OF_A_BLOCK = 4096  # sixteen times the largest that ships; exact sums over more take minutes


class Bound(NamedTuple):
    """One closed form: what it bounds, its value (a fraction unless the unit says otherwise), its formula."""

    id: str
    quantity: str
    value: float
    unit: str
    formula: str


def bound_command(
    ratio: Annotated[float, typer.Option(help="Compression ratio q: the fraction of tokens evicted.")] = 0.5,
    block_size: Annotated[int, typer.Option(help="Tokens of a block, B.", max=MOST_TOKENS_OF_A_BLOCK)] = 16,
    tokens: Annotated[int, typer.Option(help="Tokens of the request, N.")] = 8192,
    heads: Annotated[
        int, typer.Option(help="KV heads that share a block table and evict on their own, H.")
    ] = 1,
    layers: Annotated[int, typer.Option(help="Layers that share it, L.")] = 1,
    json: Json = None,
) -> None:
    """Print what eviction can free, in closed form: scattered, structured, at best and at worst."""
    found = _bounds(ratio, block_size, tokens, heads, layers)
    emit_json(json, [{**bound._asdict(), "kind": "closed form"} for bound in found])
    table = plain_table(
        f"{100 * ratio:g}% of {tokens:,} tokens evicted, blocks of {block_size}: freed with zero copies",
        "Closed forms: nothing is simulated or measured.",
    )
    table.add_column("eviction", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("formula", overflow="fold")
    for bound in found:
        table.add_row(bound.quantity, _shown(bound), bound.formula)
    console(json).print(table)


def _bounds(ratio: float, block_size: int, tokens: int, heads: int, layers: int) -> list[Bound]:
    from kvreclaim import bounds
    from kvreclaim.validate import check_ratio, positive_int

    positive_int(tokens, "tokens")
    evicted = round(check_ratio(ratio) * tokens)
    kept = tokens - evicted
    blocks = -(-tokens // block_size) if block_size > 0 else 0
    sinks, recent = min(SINKS, kept), int(kept * RECENT_SHARE)

    def reclaim(name: str, quantity: str, value: float, formula: str) -> Bound:
        return Bound(name, quantity, value, "fraction of blocks", formula)

    fewest, most = bounds.freed_range(tokens, evicted, block_size)
    streaming = bounds.streaming_llm_freed(tokens, sinks, kept - sinks, block_size) / blocks
    estimate = bounds.snapkv_reclaim_estimate(kept / tokens, RECENT_SHARE, CLUSTER_LENGTH, block_size)
    found = [
        reclaim(
            "independent",
            "each token evicted on its own",
            bounds.independent_reclaim(ratio, block_size),
            "q^B",
        ),
        reclaim(
            "random",
            "exactly k = qN tokens at random",
            bounds.random_reclaim(tokens, evicted, block_size),
            "C(N-B, k-B) / C(N, k)",
        ),
        reclaim(
            "independent_heads",
            f"each token in each of {heads * layers} heads that share a table",
            bounds.independent_heads_reclaim(ratio, block_size, heads, layers),
            "q^(B·H·L)",
        ),
        reclaim("worst", "at worst: one survivor a block", fewest / blocks, "max(0, n - (N - k)) / n"),
        reclaim("best", "at best: whole blocks", most / blocks, "floor(k / B) / n"),
        reclaim(
            "streaming_llm",
            f"StreamingLLM, {sinks} sinks and a window",
            streaming,
            "(floor((N-w)/B) - ceil(s/B)) / n",
        ),
        reclaim(
            "h2o",
            "H2O, half the budget recent",
            bounds.h2o_reclaim(tokens, kept, recent, block_size),
            "floor(M/B) C(M-B, h) / C(M, h) / n",
        ),
        reclaim(
            "snapkv",
            f"SnapKV, clusters of {CLUSTER_LENGTH} (estimate)",
            estimate,
            "(1-fr) d^(1 + (B-1)/c)",
        ),
    ]
    moves = bounds.compaction_moves_lower_bound(tokens, kept, block_size)
    quantity = "to compact the random case (lower bound)"
    return [*found, Bound("moves", quantity, moves, "tokens", "L - min_t [Kt + Σ E(x-t)+]")]


def _shown(bound: Bound) -> str:
    if bound.unit == "tokens":
        return f"{bound.value:,.1f} tokens"
    return percent(bound.value, 1) if bound.value >= 0.0995 else f"{100 * bound.value:.3g}%"
