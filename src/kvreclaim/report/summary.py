"""The study's tidy summary table: rows of an experiment, and single quantities for the prose."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.report.folder import Folder
from kvreclaim.report.wording import Quantity

RARE = 10
_SAME_X = 1e-9


@dataclass(frozen=True)
class Summary:
    """`results_summary.csv` of a folder."""

    frame: pl.DataFrame
    source: str

    @classmethod
    def of(cls, folder: Folder) -> Summary:
        """Read the summary of a folder."""
        return cls(folder.table("results_summary.csv"), str(folder.path / "results_summary.csv"))

    @property
    def experiments(self) -> set[str]:
        """The experiments that have rows, without their settings."""
        return {name.partition("/")[0] for name in self.frame["experiment"].unique()}

    def rows(self, experiment: str, *metrics: str) -> pl.DataFrame:
        """Return an experiment's rows (of the given metrics) that have a mean.

        Raises
        ------
        InputError
            When the table has none.
        """
        found = self.frame.filter(
            (pl.col("experiment") == experiment)
            & pl.col("metric").is_in(metrics)
            & pl.col("mean").is_finite()
        )
        if found.is_empty():
            raise InputError(
                f"{self.source} has no {' or '.join(metrics)} of experiment {experiment!r}: "
                "run `kvreclaim reproduce` again and pass its folder"
            )
        return found

    def settings(self, experiment: str) -> tuple[str, ...]:
        """Return the settings of an experiment (what follows the slash in its name), in the table's order."""
        names = self.frame["experiment"].unique(maintain_order=True).to_list()
        return tuple(name.split("/", 1)[1] for name in names if name.startswith(f"{experiment}/"))

    def quantity(
        self, experiment: str, policy: str, metric: str, x: float, kind: str = "simulated"
    ) -> Quantity:
        """Return one number of the table.

        Raises
        ------
        InputError
            When none does.
        """
        found = at(self.rows(experiment, metric), x).filter(policy=policy, kind=kind)
        if found.is_empty():
            raise InputError(
                f"{self.source} has no {kind} {metric} of {policy!r} in {experiment!r} at {x}: "
                "run `kvreclaim reproduce` again and pass its folder"
            )
        row = found.row(0, named=True)
        return Quantity(row["mean"], row["std"] or 0.0, row["n"], row["kind"])

    def with_rare_counts(self, experiment: str, table: pl.DataFrame) -> pl.DataFrame:
        """Return rows of physical reclaim with a `remark`: few free blocks as a count and its interval.

        A mean and a deviation say little of a few blocks in all runs together; where there are `RARE` or
        more, and for closed forms, `remark` is null.
        """
        counts = {
            (row["metric"], row["policy"], row["x"]): row["mean"]
            for row in self.frame.filter(experiment=experiment, kind="simulated").iter_rows(named=True)
        }
        words = [
            _rare(*(counts.get((f"free_blocks_{part}", policy, x)) for part in ("total", "low", "high")))
            if kind == "simulated"
            else None
            for policy, x, kind in table.select("policy", "x", "kind").rows()
        ]
        return table.with_columns(remark=pl.Series(words, dtype=pl.String))


def _rare(total: float | None, low: float | None, high: float | None) -> str | None:
    """Return a count of blocks and its interval in words, if the count is known and small."""
    if total is None or low is None or high is None or total >= RARE:
        return None
    return f"{total:.0f} block{'' if total == 1 else 's'} (95 %: {low:.2g}–{high:.2g})"


def at(rows: pl.DataFrame, x: float) -> pl.DataFrame:
    """Return the rows at one x."""
    return rows.filter((pl.col("x") - x).abs() < _SAME_X)
