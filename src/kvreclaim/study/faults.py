"""Where the published study is shaky, said beside the figures that it touches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A remark on the study: the experiment that it belongs to, and what to keep in mind."""

    id: str
    section: str
    text: str


FAULTS = (
    Fault(
        "mean-not-floor",
        "bound",
        "qᴮ is called a worst case and a lower bound. It is neither: it is the mean for independent "
        "scatter. One survivor in every block frees nothing at q = 15/16, where q¹⁶ is .36. The true floor "
        "is max(0, 1\u00a0−\u00a0B(1\u00a0−\u00a0q)).",
    ),
    Fault(
        "finite-sequence",
        "bound",
        "qᴮ lets each token decide alone. An eviction of exactly qN tokens frees less: at q = .5 and B = 16 "
        "it is 1.5 % less for 8,192 tokens, 14 % less for 800 and 92 % less for 64.",
    ),
    Fault(
        "few-tokens-moved",
        "shapes",
        "The 0.6 % of survivors that StreamingLLM moves are 0 to 4 tokens per run: the sinks' and the "
        "window's partial blocks, merged. The share falls as 1/length, and the .47 is freed with no move.",
    ),
    Fault(
        "boundary-blocks",
        "shapes",
        ".47 is .5 less about one and a half boundary blocks of 50, so it tends to .5 in long sequences; its "
        "deviation is that of the budgets, not of the method. It stays near .47 over B only because the "
        "sequence grows with the block: at a fixed 800 tokens it is .372 at B = 64.",
    ),
    Fault(
        "rare-count",
        "shapes",
        "H2O's .001 ± .005 is two free blocks among 1,500. A mean and a deviation say little of a count so "
        "rare: see its exact expectation, and the interval of the count.",
    ),
    Fault(
        "cluster-length",
        "shapes",
        "SnapKV's .29 hangs on a cluster length that the study does not give: clusters of 5 to 32 tokens "
        "move it from .14 to .40. The curve over that length is the result; clusters of 1 are H2O.",
    ),
    Fault(
        "calibrated",
        "shapes",
        "Fifty blocks, a budget jitter of .02 and clusters of 12 were chosen so that these rows come out as "
        "printed: their agreement is calibration, not validation.",
    ),
    Fault(
        "free-choice",
        "strategies",
        "That the reclaimability-aware policy sits in a favourable interior says little. The frontier of "
        "least loss is convex, and every setting of the policy's β lies close to it: .36 at 28 % is a "
        "point chosen on a curve.",
    ),
    Fault(
        "counted-twice",
        "strategies",
        "With independent scores the lowest tokens are a random set of positions: lowest-importance eviction "
        "frees by exactly the law of random eviction. The two rows are one piece of evidence.",
    ),
    Fault(
        "extreme-case",
        "correlation",
        "Importance that is independent of position is the extreme case for evicting the lowest tokens. That "
        "it frees next to nothing is a property of that choice as much as of the method.",
    ),
    Fault(
        "slots-not-blocks",
        "compaction",
        "The 2.48 'blocks-worth' per moved token are token slots: .155 of a block. The thousands of moves "
        "are about 1,646.",
    ),
    Fault(
        "mean-of-ratios",
        "compaction",
        "6.65 is a mean of 30 heavy-tailed ratios. For one hole at a random offset its expectation is 5.66 "
        "with a deviation of 4.4 per run; all slots freed over all tokens moved is 3.75, and steadier.",
    ),
    Fault(
        "orders-of-magnitude",
        "compaction",
        "Block-aligned holes are orders of magnitude cheaper only if compaction is credited with blocks that "
        "eviction had already freed, a ratio that the study itself declines to headline. By what compaction "
        "frees itself, the clustered hole gives about twice as much per move.",
    ),
    Fault(
        "step-function",
        "admission",
        "Requests of 8 blocks make admission a step function: the aware policy's 22.6 is 23.0 before "
        "rounding down.",
    ),
    Fault(
        "one-sequence",
        "admission",
        "The pool is one sequence of 8,192 tokens. Many short sequences each pay for boundary blocks of "
        "their own, and admit fewer.",
    ),
)
