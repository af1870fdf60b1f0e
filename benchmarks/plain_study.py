"""The published study in plain NumPy, one run at a time, without kvreclaim.

Every experiment of ``kvreclaim reproduce``, from the same random streams, so that the numbers must be the
same: a check by other means, and a yardstick for its time. ``python benchmarks/plain_study.py`` prints them.
"""

import math
from collections import defaultdict
from statistics import NormalDist
from zlib import crc32

import numpy as np

B = 16
POOL = 512 * B  # tokens of the pool
TENTHS = [tenth / 10 for tenth in range(1, 10)]
DISTRIBUTIONS = {
    "lognormal": lambda rng: np.exp(rng.standard_normal(POOL)),
    "uniform": lambda rng: rng.random(POOL),
    "exponential": lambda rng: rng.standard_exponential(POOL),
    "pareto-2": lambda rng: 1 + rng.pareto(2.0, POOL),
    "pareto-1.5": lambda rng: 1 + rng.pareto(1.5, POOL),
}


def stream(seed, *names):
    """Return the random stream of a run: its seed, then what it is for (words by their CRC-32)."""
    words = [crc32(name.encode()) if isinstance(name, str) else name for name in names]
    return np.random.default_rng([seed, *words])


# What an allocator sees


def ledger(live, block_size=B):
    """Return what is free at once, and what compaction into the fullest blocks takes and frees."""
    count = live.reshape(-1, block_size).sum(axis=1)
    blocks, survivors = len(count), count.sum()
    free = np.sum(count == 0)
    needed = math.ceil(survivors / block_size)
    moved = survivors - np.sort(count)[blocks - needed :].sum()
    freed = blocks - needed - free
    dead = len(live) - survivors
    return {
        "retained": survivors / len(live),
        "logical_saving": dead / len(live),
        "physical_reclaim": free / blocks,
        "compacted_reclaim": (free + freed) / blocks,
        "reclaim_efficiency": free / blocks / (dead / len(live)) if dead else math.nan,
        "fragmentation": 1 - survivors / ((blocks - free) * block_size) if free < blocks else math.nan,
        "moved_tokens": moved,
        "moved_fraction": moved / survivors if survivors else math.nan,
        "moved_bytes": moved * 131072,  # Llama-3-8B in bfloat16
        "slots_per_move": freed * block_size / moved if moved else math.nan,
        "total_slots_per_move": (free + freed) * block_size / moved if moved else math.nan,
        "free_at_eviction": free,
        "free_by_compaction": freed,
        "admitted": free // 8,
        "admitted_after_compaction": (free + freed) // 8,
    }


# Which tokens are evicted


def evict_lowest(scores, evicted):
    """Evict the tokens of the lowest scores."""
    live = np.ones(len(scores), bool)
    live[np.argsort(scores, kind="stable")[:evicted]] = False
    return live


def evict_blocks(scores, evicted):
    """Evict whole blocks, the least important first; the rest from the lowest tokens of the next block."""
    live = np.ones(len(scores), bool)
    ascending = np.argsort(scores.reshape(-1, B).sum(axis=1), kind="stable")
    for block in ascending[: evicted // B]:
        live[block * B : (block + 1) * B] = False
    if evicted % B:
        start = ascending[evicted // B] * B
        live[start : start + B] = evict_lowest(scores[start : start + B], evicted % B)
    return live


def evict_reclaimably(scores, evicted):
    """Evict half as single tokens; then clear the blocks of the least importance left, while they fit."""
    ascending = np.argsort(scores, kind="stable")
    live = evict_lowest(scores, evicted // 2)
    left = evicted - evicted // 2
    residual = np.where(live, scores, 0.0).reshape(-1, B).sum(axis=1)
    for block in np.argsort(residual, kind="stable"):
        tokens = slice(block * B, (block + 1) * B)
        if live[tokens].sum() > left:
            break
        left -= live[tokens].sum()
        live[tokens] = False
    live[ascending[live[ascending]][:left]] = False
    return live


def streaming_llm(_rng, tokens, budget):
    """Keep 4 sinks, and the budget as the recent window."""
    live = np.zeros(tokens, bool)
    live[:4] = live[tokens - budget :] = True
    return live


def h2o(rng, tokens, budget):
    """Keep a recent window of half the budget, and heavy hitters at random before it."""
    window = budget // 2
    scores = rng.random(tokens)
    hitters = evict_lowest(scores[: tokens - window], tokens - budget)
    return np.concatenate([hitters, np.ones(window, bool)])


def snapkv(rng, tokens, budget, cluster=12):
    """Keep the same window, and clusters at random before it; the last one is cut to the budget."""
    window = budget // 2
    before = tokens - window
    live = np.zeros(tokens, bool)
    live[before:] = True
    left = budget - window
    while left:
        start = rng.integers(0, before - cluster, endpoint=True)
        dead = start + np.flatnonzero(~live[start : start + cluster])[:left]
        live[dead] = True
        left -= len(dead)
    return live


def random_tokens(rng, tokens, budget):
    """Keep tokens at random."""
    return evict_lowest(rng.random(tokens), tokens - budget)


def one_hole(rng):
    """Evict one contiguous half of the pool."""
    start = rng.integers(0, POOL // 2, endpoint=True)
    live = np.ones(POOL, bool)
    live[start : start + POOL // 2] = False
    return live


SHAPES = {"streaming-llm": streaming_llm, "snapkv": snapkv, "h2o": h2o, "random": random_tokens}
BY_SCORE = {
    "lowest-importance": evict_lowest,
    "block-wise": evict_blocks,
    "reclaimability-aware": evict_reclaimably,
}


# The experiments; each gives (experiment, policy, x) -> {metric: (mean, std, n)}


def bound(_seeds):
    """Return the chance that a block is free: independent coins, and an exact count."""
    rows = {}
    for block_size in (4, 8, 16, 32, 64):
        for q in sorted({step / 50 for step in range(51)} | {0.75}):
            k = round(q * POOL)
            exact = math.comb(k, block_size) / math.comb(POOL, block_size)
            for policy, reclaim, evicted in (("independent", q**block_size, q), ("exact", exact, k / POOL)):
                rows[f"bound/B={block_size}", policy, q] = {
                    "physical_reclaim": mean_and_std([reclaim]),
                    "reclaim_efficiency": mean_and_std([reclaim / evicted if evicted else math.nan]),
                }
    return rows


def budgets(runs, tokens, retained):
    """Return each run's budget: the retained ratio jitters by .02 in equal steps of probability."""
    return [round(NormalDist(retained, 0.02).inv_cdf((run + 0.5) / runs) * tokens) for run in range(runs)]


def shapes(seeds):
    """Return the realistic shapes over the block size, and over the retained ratio; 50 blocks always."""
    rows = {}
    cases = [("shapes", size, size, 0.5) for size in (4, 8, 16, 32, 64)]
    cases += [("shapes_retained", retained, B, retained) for retained in TENTHS]
    for experiment, x, block_size, retained in cases:
        tokens = 50 * block_size
        for policy, shape in SHAPES.items():
            runs = [
                ledger(shape(stream(seed, experiment, policy, round(100 * x)), tokens, budget), block_size)
                for seed, budget in zip(seeds, budgets(len(seeds), tokens, retained), strict=True)
            ]
            metrics = ("physical_reclaim", "retained", "moved_fraction", "fragmentation", "compacted_reclaim")
            rows[experiment, policy, x] = summary(runs, metrics) | rare_count(runs)
    return rows


def snapkv_cluster(seeds):
    """Return SnapKV over the length of its clusters."""
    rows = {}
    for cluster in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64):
        runs = [
            ledger(snapkv(stream(seed, "snapkv_cluster", cluster), 800, budget, cluster))
            for seed, budget in zip(seeds, budgets(len(seeds), 800, 0.5), strict=True)
        ]
        rows["snapkv_cluster", "snapkv", cluster] = summary(runs, ["physical_reclaim"])
    return rows


def strategies(seeds):
    """Return the four strategies over the ratio, for each law of importance, and what they admit."""
    rows = {}
    for law, draw in DISTRIBUTIONS.items():
        outcomes = defaultdict(list)
        for seed in seeds:
            scores = draw(stream(seed, "strategies", "importance", law))
            noise = stream(seed, "strategies", "random").random(POOL)
            for q in TENTHS:
                k = round(q * POOL)
                masks = {policy: evict(scores, k) for policy, evict in BY_SCORE.items()}
                for policy, live in (masks | {"random": evict_lowest(noise, k)}).items():
                    loss = scores[~live].sum() / scores.sum()
                    outcomes[policy, q].append(ledger(live) | {"importance_loss": loss})
        metrics = ["logical_saving", "physical_reclaim", "reclaim_efficiency", "importance_loss"]
        metrics += ["fragmentation", "admitted", "moved_tokens"]
        for (policy, q), runs in outcomes.items():
            rows[f"strategies/{law}", policy, q] = summary(runs, metrics)
            if policy in ("random", "lowest-importance"):
                rows[f"strategies/{law}", policy, q] |= rare_count(runs)
            if law == "lognormal":
                rows["admission", policy, q] = summary(runs, ["admitted"])
        if law == "lognormal":
            for q in TENTHS:
                after = [run["admitted_after_compaction"] for run in outcomes["random", q]]
                rows["admission", "random+compaction", q] = {"admitted": mean_and_std(after)}
                rows["admission", "naive", q] = {"admitted": (int(q * 512) // 8, 0.0, 1)}
    return rows


def frontier(seeds):
    """Return the least loss at which half the pool goes and so many blocks are freed."""
    rows = {}
    for law, draw in DISTRIBUTIONS.items():
        pools = [draw(stream(seed, "strategies", "importance", law)) for seed in seeds]
        for step in range(17):
            losses = [least_loss(scores, POOL // 2, 16 * step) for scores in pools]
            rows[f"frontier/{law}", "minimum-loss", step / 32] = {"importance_loss": mean_and_std(losses)}
    return rows


def least_loss(scores, evicted, freed):
    """Return the least loss, by the price of an eviction at which just so many tokens go.

    At a price the blocks whose tokens cost least above it are cleared, and elsewhere what lies below it goes.
    Where the count jumps over the one wanted, both sides are filled up with the lowest other tokens.
    """
    blocks = scores.reshape(-1, B)
    low, high = 0.0, scores.max() * 2
    sides = {}
    while low < (price := (low + high) / 2) < high:
        excess = np.maximum(blocks - price, 0).sum(axis=1)
        cleared = np.zeros(blocks.shape, bool)
        cleared[np.argsort(excess, kind="stable")[:freed]] = True
        dead = cleared.ravel() | (scores < price)
        if dead.sum() == evicted:
            return scores[dead].sum() / scores.sum()
        too_few = dead.sum() < evicted
        sides[too_few] = np.where(cleared.ravel(), 0.0, scores)
        low, high = (price, high) if too_few else (low, price)
    return min(scores[~evict_lowest(order, evicted)].sum() for order in sides.values()) / scores.sum()


def correlation(seeds):
    """Return what importance that is smooth in space frees: white noise mixed with a smoothed field."""
    rows = {}
    offsets = np.arange(-200, 201)
    kernel = np.exp(-(offsets**2) / (2 * 50.0**2))
    noises, fields = [], []
    for seed in seeds:
        rng = stream(seed, "correlation", "importance")
        noises.append(rng.standard_normal(POOL))
        field = np.convolve(np.pad(rng.standard_normal(POOL), 200, mode="wrap"), kernel, mode="valid")
        fields.append((field - field.mean()) / field.std())
    for rho in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0):
        pools = [
            np.exp(math.sqrt(1 - rho) * noise + math.sqrt(rho) * field)
            for noise, field in zip(noises, fields, strict=True)
        ]
        lowest, block_wise = (
            np.array([ledger(evict(scores, POOL // 2))["physical_reclaim"] for scores in pools])
            for evict in (evict_lowest, evict_blocks)
        )
        rows["correlation", "lowest-importance", rho] = {"physical_reclaim": mean_and_std(lowest)}
        rows["correlation", "block-wise", rho] = {"physical_reclaim": mean_and_std(block_wise)}
        rows["correlation", "gap", rho] = {"gap_to_block_wise": mean_and_std(block_wise - lowest)}
    return rows


def compaction(seeds):
    """Return what it takes to compact half a pool, after three kinds of eviction."""
    masks = {
        "random": lambda seed: random_tokens(stream(seed, "compaction", "random"), POOL, POOL // 2),
        "clustered-hole": lambda seed: one_hole(stream(seed, "compaction", "clustered-hole")),
        "block-wise": lambda seed: evict_blocks(
            DISTRIBUTIONS["lognormal"](stream(seed, "compaction", "importance")), POOL // 2
        ),
    }
    metrics = ["moved_tokens", "moved_fraction", "slots_per_move", "total_slots_per_move"]
    metrics += ["free_at_eviction", "free_by_compaction", "moved_bytes"]
    rows = {}
    for policy, mask in masks.items():
        runs = [ledger(mask(seed)) for seed in seeds]
        rows["compaction", policy, 0.5] = summary(runs, metrics) | ratio_of_means(runs)
    return rows


# The summary


def summary(runs, metrics):
    """Return mean, deviation and count of each metric."""
    return {metric: mean_and_std([run[metric] for run in runs]) for metric in metrics}


def mean_and_std(values):
    """Return mean, population standard deviation and count of the values that are defined."""
    defined = np.array([value for value in values if not math.isnan(value)], float)
    return (defined.mean(), defined.std(), len(defined)) if len(defined) else (math.nan, math.nan, 0)


def rare_count(runs):
    """Return the blocks freed in all runs together, and the exact 95 % interval of a Poisson mean."""
    total = sum(run["free_at_eviction"] for run in runs)
    low = poisson_mean(total - 1, 0.975) if total else 0.0
    ends = {"total": total, "low": low, "high": poisson_mean(total, 0.025)}
    return {f"free_blocks_{end}": (value, 0.0, len(runs)) for end, value in ends.items()}


def poisson_mean(events, probability):
    """Return the mean at which so many events or fewer have this probability."""
    low, high = 0.0, 2.0 * events + 10.0
    log_factorial = [math.lgamma(k + 1) for k in range(events + 1)]
    while low < (mean := (low + high) / 2) < high:
        at_most = sum(math.exp(k * math.log(mean) - mean - log_factorial[k]) for k in range(events + 1))
        low, high = (mean, high) if at_most > probability else (low, mean)
    return mean


def ratio_of_means(runs):
    """Return all slots freed per token moved in all runs, and the deviation of one run's part in it."""
    slots = np.array([run["free_by_compaction"] * B for run in runs])
    moved = np.array([run["moved_tokens"] for run in runs])
    if not moved.any():
        return {"slots_per_move_ratio_of_means": (math.nan, math.nan, 0)}
    ratio = slots.sum() / moved.sum()
    parts = (slots - ratio * moved) / moved.mean()
    return {"slots_per_move_ratio_of_means": (ratio, parts.std(), len(runs))}


def run(seeds=30, seed_base=0):
    """Return {(experiment, policy, x, metric): (mean, std, n)} of all experiments."""
    batch = range(seed_base, seed_base + seeds)
    return {
        (*point, metric): found
        for experiment in (bound, shapes, snapkv_cluster, strategies, frontier, correlation, compaction)
        for point, metrics in experiment(batch).items()
        for metric, found in metrics.items()
    }


if __name__ == "__main__":
    print(f"{'experiment':24} {'policy':22} {'x':>6} {'metric':22} {'mean':>12} {'std':>12} {'n':>3}")
    for (experiment, policy, x, metric), (mean, std, n) in run().items():
        print(f"{experiment:24} {policy:22} {x:6g} {metric:22} {mean:12.6g} {std:12.6g} {n:3}")
