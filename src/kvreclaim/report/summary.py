"""The study's tidy summary table: rows of an experiment, and single quantities for the prose."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kvreclaim.errors import InputError
from kvreclaim.report.folder import Folder
from kvreclaim.report.wording import Quantity

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

    def rows(self, experiment: str, *metrics: str) -> pl.DataFrame:
        """Return an experiment's rows (of the given metrics) that have a mean.

        Raises
        ------
        InputError
            When the table has none.
        """
        found = self.frame.filter(
            (pl.col("experiment") == experiment) & pl.col("metric").is_in(metrics) & pl.col("mean").is_finite()
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
        self, experiment: str, policy: str, metric: str, x: float | None = None, kind: str | None = None
    ) -> Quantity:
        """Return one number of the table, the first that matches.

        Raises
        ------
        InputError
            When none does.
        """
        found = self.rows(experiment, metric).filter(pl.col("policy") == policy)
        if x is not None:
            found = found.filter((pl.col("x") - x).abs() < _SAME_X)
        if kind is not None:
            found = found.filter(pl.col("kind") == kind)
        if found.is_empty():
            raise InputError(f"{self.source} has no {metric} of {policy!r} in {experiment!r} at {x}: run `kvreclaim reproduce` again")
        row = found.row(0, named=True)
        return Quantity(row["mean"], row["std"] or 0.0, row["n"], row["kind"])


def at(rows: pl.DataFrame, x: float) -> pl.DataFrame:
    """Return the rows at one x."""
    return rows.filter((pl.col("x") - x).abs() < _SAME_X)
