"""What `kvreclaim measure` prints: policies at one ratio, and at matched quality."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from kvreclaim.cli.output import byte_unit, percent, plain_table, printable
from kvreclaim.validate import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table

    from kvreclaim.capture.matched.ledger import MatchedRow
    from kvreclaim.capture.measure.run import Measurement
    from kvreclaim.capture.measure.settings import Settings
    from kvreclaim.capture.measure.tables import MatchedPromptRow, MeasuredRow

HALF = 0.5
KINDS = ("shared", "per_layer", "per_head")
LEAST_PROMPTS = 6  # of fewer, not even the range holds the true median with 95 % probability


def ratio_table(rows: Sequence[MeasuredRow], settings: Settings) -> Table:
    """Return the table of the ratio nearest to a half: means over prompts, the most freed first."""
    ratio = min(settings.ratios, key=lambda swept: abs(swept - HALF))
    size = settings.block_sizes[0]
    table = _table(
        f"At ratio {ratio:g}, blocks of {size}: freed with zero copies, and the cost in quality",
        f"{_prompts(settings)} of {settings.context:,} tokens, measured: means. KL to the full model "
        "and rise of NLL in nats, agreement on the most likely token. Packed: shared tables.",
        (
            "kept",
            "freed,\nshared",
            "freed,\nper\nlayer",
            "freed,\nper\nhead",
            "packed",
            "KL",
            "ΔNLL",
            "top-1",
        ),
    )
    at_ratio = [row for row in rows if (row.ratio, row.block_size) == (ratio, size)]
    by_policy = {
        policy: {
            kind: [row for row in at_ratio if (row.policy, row.block_tables) == (policy, kind)]
            for kind in KINDS
        }
        for policy in settings.policies
    }

    def rank(policy: str) -> tuple[float, float]:
        shared = by_policy[policy]["shared"]
        return -fmean(row.physical_reclaim for row in shared), fmean(row.kl for row in shared)

    for policy in sorted(by_policy, key=rank):
        shared = by_policy[policy]["shared"]
        table.add_row(
            in_parts(policy),
            _mean(row.retained for row in shared),
            *(_mean(row.physical_reclaim for row in by_policy[policy][kind]) for kind in KINDS),
            _mean(row.packing_reclaim for row in shared),
            f"{fmean(row.kl for row in shared):.2g}",
            f"{fmean(row.delta_nll for row in shared):+.3f}",
            _mean(row.top1 for row in shared),
        )
    return table


def matched_table(found: Measurement, settings: Settings) -> Table:
    """Return the table at matched quality: medians over prompts, the most freed first."""
    name, unit = byte_unit(max(row.moved_bytes or 0 for row in found.matched))
    target = "SnapKV's KL at ratio 0.5" if settings.target_kl is None else f"a KL of {settings.target_kl:g}"
    table = _table(
        f"At matched quality ({target}), blocks of {settings.block_sizes[0]}",
        _matched_caption(found.matched_prompts, settings),
        (
            "ratio",
            "kept",
            f"freed,\nshared\n[{'95 %' if settings.prompts >= LEAST_PROMPTS else 'range'}]",
            "freed,\nper\nhead",
            "packed",
            f"{name}\nmoved",
            "admitted\nfreed /\npacked",
            "in\nsweep",
        ),
    )
    by_policy: dict[str, dict[tuple[str, str], MatchedRow]] = {}
    for row in found.matched:
        by_policy.setdefault(row.policy, {})[row.block_tables, row.remedy] = row
    free, packing = ("shared", "zero_copy"), ("shared", "packing")

    def rank(policy: str) -> tuple[float, float]:
        return -by_policy[policy][free].physical_reclaim, -by_policy[policy][packing].physical_reclaim

    for policy in sorted(by_policy, key=rank):
        rows = by_policy[policy]
        freed, packed = rows[free], rows[packing]
        table.add_row(
            in_parts(policy),
            f"{freed.ratio:.2f}",
            percent(freed.retained),
            f"{percent(freed.physical_reclaim)} [{100 * freed.low:.0f}–{100 * freed.high:.0f}]",
            percent(rows["per_head", "zero_copy"].physical_reclaim),
            percent(packed.physical_reclaim),
            f"{(packed.moved_bytes or 0) / unit:.1f}",
            f"{freed.admitted:.0f} / {packed.admitted:.0f}",
            _reached(freed),
        )
    return table


def _matched_caption(rows: Sequence[MatchedPromptRow], settings: Settings) -> str:
    inside = [row.kl / row.target_kl for row in rows if row.reached == "inside"]
    off = f" Their KL is {min(inside):.2f} to {max(inside):.2f} times the target." if inside else ""
    return (
        f"Medians over {_prompts(settings)}, of masks made again at the ratio that matches.{off} "
        "Packed, moved, admitted: shared tables. Moved: of one prompt's cache, as the model is served. "
        f"Admitted: requests of {settings.request_tokens} tokens into what is free of 512 blocks. In sweep: "
        "prompts whose ratio lies inside the sweep; that of others is a bound, the true one higher (>) or "
        "lower (<)."
    )


def _prompts(settings: Settings) -> str:
    return counted(settings.prompts, "prompt")


def _reached(row: MatchedRow) -> str:
    """Return how many prompts were matched inside the sweep, and on which side the others lie."""
    sides = (f" {row.above}>" if row.above else "") + (f" {row.below}<" if row.below else "")
    return f"{row.reached}{sides}"


def in_parts(policy: str, width: int = 18) -> str:
    """Return a policy's name for a table cell, broken between its parts where it is longer than the cell."""
    lines = [""]
    for part in printable(policy).replace(":", ":\n").splitlines():
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _table(title: str, caption: str, headings: Iterable[str]) -> Table:
    table = plain_table(title, caption)
    table.padding = (0, 0)  # one space between the columns: there are nine
    table.add_column("policy", overflow="fold", min_width=18)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _mean(values: Iterable[float]) -> str:
    return percent(fmean(values))
