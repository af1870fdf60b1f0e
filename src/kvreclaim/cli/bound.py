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
    ratio: Annotated[
        float, typer.Option(metavar="FRACTION", help="Compression ratio q: the fraction of tokens evicted.")
    ] = 0.5,
    block_size: Annotated[
        int,
        typer.Option(
            metavar="TOKENS", help="Tokens of a block, B, at most 4096.", max=MOST_TOKENS_OF_A_BLOCK
        ),
    ] = 16,
    tokens: Annotated[int, typer.Option(metavar="TOKENS", help="Tokens of the request, N.")] = 8192,
    heads: Annotated[
        int,
        typer.Option(metavar="COUNT", help="KV heads that share a block table and evict on their own, H."),
    ] = 1,
    layers: Annotated[int, typer.Option(metavar="COUNT", help="Layers that share it, L.")] = 1,
    json: Json = None,
) -> None:
    """Print what eviction can free, in closed form: scattered, structured, at best and at worst."""
    found = _bounds(ratio, block_size, tokens, heads, layers)
    emit_json(json, [{**bound._asdict(), "kind": "closed form"} for bound in found])
    count = f"{tokens:,} token{'' if tokens == 1 else 's'}"
    table = plain_table(
        f"{100 * ratio:g}% of {count} evicted, blocks of {block_size}: freed with zero copies",
        "Closed forms: nothing is simulated or measured.\n"
        + _letters(tokens, block_size, heads * layers > 1),
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
    scattered = [
        _freed(
            "independent",
            "each token evicted on its own (a full block)",
            bounds.independent_reclaim(ratio, block_size),
            "q^B",
        ),
        _freed(
            "random",
            "exactly k tokens at random",
            bounds.random_reclaim(tokens, evicted, block_size),
            _random_formula(tokens, block_size),
        ),
    ]
    together = bounds.independent_heads_reclaim(ratio, block_size, heads, layers)
    if heads * layers > 1:
        quantity = f"each token on its own in each of {heads * layers} heads that share a table"
        scattered.append(_freed("independent_heads", quantity, together, "q^(B·H·L)"))
    moves = bounds.compaction_moves_lower_bound(tokens, tokens - evicted, block_size)
    return [
        *scattered,
        *_structured(tokens, evicted, block_size),
        Bound(
            "moves",
            "to compact the random case (lower bound)",
            moves,
            "tokens",
            "max(0, S - min_t [K t + Σ E(x-t)+])",
        ),
    ]


def _structured(tokens: int, evicted: int, block_size: int) -> list[Bound]:
    """Return the bounds of any eviction, and what the deployed shapes free."""
    from kvreclaim import bounds

    kept, blocks, partial = tokens - evicted, -(-tokens // block_size), tokens % block_size
    sinks, recent = min(SINKS, kept), int(kept * RECENT_SHARE)
    fewest, most = bounds.freed_range(tokens, evicted, block_size)
    streaming = bounds.streaming_llm_freed(tokens, sinks, kept - sinks, block_size) / blocks
    estimate = bounds.snapkv_reclaim_estimate(kept / tokens, RECENT_SHARE, CLUSTER_LENGTH, block_size)
    return [
        _freed("worst", "at worst: one survivor in each block", fewest / blocks, "max(0, n - S) / n"),
        _freed(
            "best",
            "at best: whole blocks",
            most / blocks,
            "(1 + floor((k-p)/B)) / n" if 0 < partial <= evicted else "floor(k/B) / n",
        ),
        _freed(
            "streaming_llm",
            f"StreamingLLM, {sinks} sinks and a window",
            streaming,
            "max(0, floor((N-w)/B) - ceil(s/B)) / n" if kept > sinks else "(n - ceil(s/B)) / n",
        ),
        _freed(
            "h2o",
            "H2O, half the budget recent",
            bounds.h2o_reclaim(tokens, kept, recent, block_size),
            "floor(M/B) C(M-B, h) / C(M, h) / n" if recent else _random_formula(tokens, block_size),
        ),
        _freed(
            "snapkv",
            f"SnapKV, clusters of {CLUSTER_LENGTH} (estimate, at most the best)",
            min(estimate, most / blocks),
            "min(best, (1-f r) d^(1 + (B-1)/c))",
        ),
    ]


def _freed(name: str, quantity: str, value: float, formula: str) -> Bound:
    return Bound(name, quantity, value, "fraction of blocks", formula)


def _random_formula(tokens: int, block_size: int) -> str:
    whole = "C(N-B, k-B) / C(N, k)"
    return f"[floor(N/B) {whole} + C(N-p, k-p) / C(N, k)] / n" if tokens % block_size else whole


def _letters(tokens: int, block_size: int, shared: bool) -> str:
    """Say what the formulas' letters mean, of those that stand in them."""
    partial = ", p = N mod B tokens in the last" if tokens % block_size else ""
    heads = " H heads and L layers share a table; the other rows are one head's." if shared else ""
    return (
        f"q ratio, N tokens, B tokens in a block, n = ceil(N/B) blocks{partial}; k = qN evicted, rounded, "
        "S = N - k survive.\n"
        "s sinks, w window: S - s tokens, for H2O floor(S/2); M = N - w tokens before it, h = S - w heavy "
        f"hitters among them.\nr = S/N, f = {RECENT_SHARE:g} the window's share of the survivors, "
        "d = (1-r) / (1-f r) the dead share before it, c tokens in a cluster.\n"
        f"K = ceil(S/B) blocks hold the survivors, x of them in a block; t = 0 to B - 1.{heads}"
    )


def _shown(bound: Bound) -> str:
    if bound.unit == "tokens":
        return f"{bound.value:,.1f} tokens"
    return percent(bound.value, 1) if bound.value >= 0.0995 else f"{100 * bound.value:.3g}%"
