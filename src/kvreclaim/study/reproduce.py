"""The whole study: every experiment, over processes if asked, and the verdict on every printed figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kvreclaim.processes import running
from kvreclaim.scores.synthetic import DISTRIBUTIONS
from kvreclaim.study import (
    admission,
    bound,
    compaction,
    correlation,
    frontier,
    shapes,
    snapkv_cluster,
    strategies,
)
from kvreclaim.study.blockmaps import block_maps
from kvreclaim.study.published import NOT_REPRODUCED, Judged, judge_all
from kvreclaim.study.rows import Row, flatten
from kvreclaim.study.seeds import Seeds
from kvreclaim.study.settings import PUBLISHED_SEEDS
from kvreclaim.validate import positive_int

if TYPE_CHECKING:
    import polars as pl

Experiment = Callable[[Seeds], list[Row]]
Progress = Callable[[int, int, str], None]
"""Called with the experiments done, their number, and the name of the one that ended."""

# In the order of the rows.
EXPERIMENTS: dict[str, Experiment] = {
    "bound": bound.run,
    "shapes": shapes.run,
    "shapes_retained": shapes.run_retained,
    "snapkv_cluster": snapkv_cluster.run,
    **{f"strategies/{name}": partial(strategies.run, distribution=name) for name in DISTRIBUTIONS},
    **{f"frontier/{name}": partial(frontier.run, distribution=name) for name in DISTRIBUTIONS},
    "correlation": correlation.run,
    "compaction": compaction.run,
    "admission": admission.run,
}


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The rows of all experiments, the judged figures and the block maps."""

    rows: tuple[Row, ...]
    published: tuple[Judged, ...]
    block_maps: tuple[dict[str, Any], ...]

    @property
    def not_reproduced(self) -> tuple[Judged, ...]:
        """The printed figures that did not come out."""
        return tuple(figure for figure in self.published if figure.status == NOT_REPRODUCED)

    def summary(self) -> pl.DataFrame:
        """Return the tidy rows as a table."""
        from kvreclaim.study.tables import summary_table

        return summary_table(self.rows)

    def published_figures(self) -> pl.DataFrame:
        """Return the printed figures beside their reproductions as a table."""
        from kvreclaim.study.tables import published_table

        return published_table(self.published)

    def files(self) -> dict[str, str]:
        """Return the text of ``results_summary.csv``, ``published.csv`` and ``interactive_data.json``."""
        from kvreclaim.study.tables import interactive_data

        return {
            "results_summary.csv": self.summary().write_csv(),
            "published.csv": self.published_figures().write_csv(),
            "interactive_data.json": interactive_data(self.rows, self.published, self.block_maps),
        }


def reproduce(
    seeds: int = PUBLISHED_SEEDS, seed_base: int = 0, jobs: int = 1, progress: Progress | None = None
) -> Reproduction:
    """Run every experiment and judge every printed figure.

    Parameters
    ----------
    seeds
        Runs of each stochastic experiment; the study made 30.
    seed_base
        The first seed.
    jobs
        Processes; the result does not depend on them. With more than one, a script must keep its own
        work under ``if __name__ == "__main__"``, as processes are spawned.
    progress
        Called after each experiment.

    Raises
    ------
    InputError
        If a number is out of range.
    """
    batch = Seeds(seeds, seed_base)
    workers = min(positive_int(jobs, "jobs"), len(EXPERIMENTS))
    finished = _in_turn(batch) if workers == 1 else _in_processes(batch, workers)
    found: dict[str, list[Row]] = {}
    for name, rows in finished:
        found[name] = rows
        if progress is not None:
            progress(len(found), len(EXPERIMENTS), name)
    rows = flatten(found[name] for name in EXPERIMENTS)
    return Reproduction(tuple(rows), tuple(judge_all(rows)), tuple(block_maps()))


def _in_turn(seeds: Seeds) -> Iterator[tuple[str, list[Row]]]:
    for name, run in EXPERIMENTS.items():
        yield name, run(seeds)


def _in_processes(seeds: Seeds, workers: int) -> Iterator[tuple[str, list[Row]]]:
    tasks = {name: partial(run, seeds) for name, run in EXPERIMENTS.items()}
    with running(tasks, workers) as names:
        for future in as_completed(names):
            yield names[future], future.result()
