"""The command line: one command a file; nothing imports it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvreclaim.cli.audit import audit_command
from kvreclaim.cli.bound import bound_command
from kvreclaim.cli.models import models_app
from kvreclaim.cli.page import page_command
from kvreclaim.cli.reproduce import reproduce_command
from kvreclaim.cli.runtimes import runtimes_command
from kvreclaim.errors import InputError
from kvreclaim.version import __version__

app = typer.Typer(
    name="kvreclaim",
    help="How much GPU memory KV-cache compression really gives back.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("reproduce")(reproduce_command)
app.command("audit")(audit_command)
app.command("bound")(bound_command)
app.command("runtimes")(runtimes_command)
app.add_typer(models_app, name="models")
app.command("page")(page_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvreclaim {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: exit status 2 and one line on bad input, 130 when interrupted."""
    try:
        status = app(standalone_mode=False)
    except (InputError, typer.TyperException) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        if message:  # empty where no command was given: the help has been printed
            typer.echo(f"kvreclaim: {' '.join(message.split())}", err=True)
        status = 2
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("kvreclaim: interrupted; files written so far are whole", err=True)
        status = 130
    sys.exit(status if isinstance(status, int) else 0)
