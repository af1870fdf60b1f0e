"""``kvreclaim calibrate``: constants of this machine, for what is priced with them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvreclaim.cli.extras import needs
from kvreclaim.cli.model_options import Model, repeated
from kvreclaim.cli.output import MISSING, Json, console, emit_json, plain_table, progress, wrote

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from kvreclaim.cost import CopyFit
    from kvreclaim.runtimes.copying import MeasuredCopy

calibrate_app = typer.Typer(
    help="Constants of this machine, for what is priced with them.", no_args_is_help=True
)

Devices = Annotated[
    list[str] | None,
    repeated("--device", "cpu|cuda", "Where to copy.", "all that are here"),
]
Ways = Annotated[
    list[str] | None,
    repeated(
        "--way",
        "slices|gather|pack",
        "One copy per run, rows by index, or as vLLM's cache is packed.",
        "all that are here",
    ),
]
Centres = Annotated[
    str, typer.Option("--out", metavar="FILE", help="The file to write, .npz or .safetensors.")
]
Rounds = Annotated[int, typer.Option(metavar="N", help="Interleaved pairs of each copy, at least 10.")]


@calibrate_app.command("copy")
def copy_command(devices: Devices = None, ways: Ways = None, rounds: Rounds = 11, json: Json = None) -> None:
    """Measure what copies cost here: fixed, per run and per byte, fitted to many sizes in many runs."""
    from kvreclaim.cost import fit_copy_cost
    from kvreclaim.runtimes import copying

    opened = [copying.open_device(name) for name in devices or copying.devices()]
    chosen = [(device, way) for device in opened for way in ways or copying.ways(device.name)]
    found = []
    with progress() as bar:
        for device, way in chosen:
            report = partial(_show, bar, bar.add_task(f"{way} on {device.name}", total=None))
            copies = copying.measure(device, way, rounds=rounds, report=report)
            found.append((device.name, way, copies, fit_copy_cost([copy.sample for copy in copies])))
    emit_json(json, [_as_json(*one) for one in found])
    screen = console(json)
    screen.print(_constants(found, rounds), "", _copies(found), sep="\n")


@calibrate_app.command("queries")
def queries_command(model: Model, out: Centres = "centres.npz") -> None:
    """Read off where a model's queries lie, for TriAttention's scores in vLLM; on Python's own docstrings."""
    with needs("models"):
        from kvreclaim.capture import models
        from kvreclaim.capture.presses.calibration import centres_file

        loaded, _ = models.load(model)
        centres_file(loaded).save(out)
    console(None).print(wrote(out, "the model's query centres"))


def _show(bar: Progress, task: TaskID, done: int, of: int) -> None:
    bar.update(task, completed=done, total=of)


def _as_json(device: str, way: str, copies: list[MeasuredCopy], fit: CopyFit) -> dict[str, Any]:
    cost = fit.cost
    return {
        "device": device,
        "way": way,
        "kind": "measured",
        "fixed_seconds": _with_interval(cost.fixed, *fit.fixed),
        "seconds_per_run": _with_interval(cost.per_run, *fit.per_run),
        "bytes_per_second": _with_interval(cost.bandwidth, *fit.bandwidth),
        "even_run_bytes": cost.even_run_bytes,
        "median_error": fit.median_error,
        "copies": [
            {
                "moved_bytes": copy.moved_bytes,
                "runs": copy.runs,
                "rounds": copy.rounds,
                "seconds": copy.seconds,
                "fitted_seconds": cost.seconds(copy.moved_bytes, copy.runs),
                "plain_seconds": copy.plain_seconds,
                "slowdown": copy.slowdown,
            }
            for copy in copies
        ],
    }


def _with_interval(value: float | None, low: float | None, high: float | None) -> dict[str, float | None]:
    return {"value": value, "low": low, "high": high}


def _constants(found: list[tuple[str, str, list[MeasuredCopy], CopyFit]], rounds: int) -> Table:
    table = plain_table(
        "What a copy costs on this machine",
        f"Measured: medians of {rounds} interleaved pairs, fitted by relative least squares; 95 % bootstrap "
        "intervals. A run shorter than the even run costs more in overhead than in bytes. The error is the "
        "median over the copies below.",
    )
    table.add_column("device")
    table.add_column("way")
    for heading in ("fixed, µs", "a run, µs", "GB/s", "even\nrun, KiB", "error"):
        table.add_column(heading, justify="right")
    for device, way, _, fit in found:
        low, high = fit.bandwidth
        table.add_row(
            device,
            way,
            _scaled(fit.cost.fixed, fit.fixed, 1e6),
            _scaled(fit.cost.per_run, fit.per_run, 1e6),
            _scaled(fit.cost.bandwidth, (low, high), 1e-9),
            MISSING if fit.cost.even_run_bytes is None else f"{fit.cost.even_run_bytes / 1024:.3g}",
            f"{fit.median_error:.0%}",
        )
    return table


def _scaled(value: float | None, ends: tuple[float | None, float | None], scale: float) -> str:
    """Return ``12.3 [11.9, 12.6]``, a dash for what is not bounded."""
    value_text, low, high = (MISSING if each is None else f"{each * scale:.2g}" for each in (value, *ends))
    return f"{value_text} [{low}, {high}]"


def _copies(found: list[tuple[str, str, list[MeasuredCopy], CopyFit]]) -> Table:
    table = plain_table(
        "The copies", "Measured, as above. Plain: one copy of as many bytes, in the same rounds."
    )
    table.add_column("device")
    table.add_column("way")
    for heading in ("KiB", "runs", "measured\nµs", "fitted\nµs", "GB/s", "of plain"):
        table.add_column(heading, justify="right")
    for device, way, copies, fit in found:
        for copy in copies:
            table.add_row(
                device,
                way,
                f"{copy.moved_bytes / 1024:,.0f}",
                f"{copy.runs:,}",
                f"{copy.seconds * 1e6:,.0f}",
                f"{fit.cost.seconds(copy.moved_bytes, copy.runs) * 1e6:,.0f}",
                f"{copy.moved_bytes / copy.seconds / 1e9:.2f}",
                f"{copy.slowdown:.1f} x",
            )
    return table
