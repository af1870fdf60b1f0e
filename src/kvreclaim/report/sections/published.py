"""Every printed figure of the published study beside the reproduced one."""

from __future__ import annotations

from kvreclaim.report.folder import Folder
from kvreclaim.report.section import Section, Table
from kvreclaim.report.wording import number, with_spread

_STATUS = {
    "exact": ("✓ exact", "good"),
    "within": ("✓ within", "good"),
    "compatible": ("≈ compatible", "fair"),
    "not reproduced": ("✗ not reproduced", "bad"),
}


def build(folder: Folder) -> Section:
    """Return the section of the published figures."""
    table = folder.table("published.csv")
    rows, tones = [], []
    for row in table.iter_rows(named=True):
        words, tone = _STATUS.get(row["status"], (str(row["status"]), ""))
        unit = " %" if row["published"].rstrip().endswith("%") else ""
        spread = None if row["std"] is None or row["n"] == 1 else row["std"]
        oracle = "" if row["oracle"] is None else f"{number(row['oracle'])}{unit}"
        count = "" if row["n"] is None else f"{row['n']:,}"
        rows.append(
            (
                row["quantity"],
                row["published"],
                f"{with_spread(row['reproduced'], spread)}{unit}",
                count,
                oracle,
                words,
            )
        )
        tones.append(tone)
    counts = table["status"].value_counts(sort=True).rows()
    tally = ", ".join(f"{count} {status}" for status, count in counts)
    return Section(
        id="published",
        title="Printed beside reproduced",
        prose=(
            f"All {table.height} figures printed in the study's two texts: {tally}. Exact means "
            "deterministic and equal as printed; within, inside half of the last printed digit plus three "
            "standard errors; compatible, that the printed value lies within three standard errors of the "
            "exact expectation without being its rounding.",
            "The study's program is not public. Its parameters were found here by a search against these "
            "same figures, so agreement shows a consistent explanation, not the original code.",
        ),
        items=(
            Table(
                id="published-figures",
                title="Printed figures",
                caption=(
                    "Reproduced: mean ± population standard deviation over n runs. "
                    "Oracle: the closed form, where there is one."
                ),
                columns=("Quantity", "Published", "Reproduced", "n", "Oracle", "Status"),
                rows=tuple(rows),
                numeric=frozenset({2, 3, 4}),
                tones=tuple(tones),
                folded=True,
            ),
        ),
        sources=("study",),
    )
