"""The command line: one command a file; nothing imports it."""

from __future__ import annotations

import errno
import os
import sys
from io import TextIOWrapper
from typing import IO, Annotated

import typer

from kvreclaim.cli.apart import apart
from kvreclaim.cli.audit import audit_command
from kvreclaim.cli.bound import bound_command
from kvreclaim.cli.calibrate import calibrate_app
from kvreclaim.cli.measure import measure_command
from kvreclaim.cli.models import models_app
from kvreclaim.cli.observe import observe_command
from kvreclaim.cli.output import printable
from kvreclaim.cli.page import page_command
from kvreclaim.cli.refusals import in_words
from kvreclaim.cli.reproduce import reproduce_command
from kvreclaim.cli.runtimes import runtimes_command
from kvreclaim.errors import InputError
from kvreclaim.version import __version__

INTERRUPTED = 130

app = typer.Typer(
    name="kvreclaim",
    help="How much GPU memory KV-cache compression really gives back.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("reproduce")(apart(reproduce_command))
app.command("audit")(apart(audit_command))
app.command("bound")(bound_command)
app.command("runtimes")(runtimes_command)
app.add_typer(models_app, name="models")
app.command("measure")(apart(measure_command))
app.command("observe")(apart(observe_command))
app.add_typer(calibrate_app, name="calibrate")
app.command("page")(apart(page_command))


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
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # where the encoding lacks a sign of a table
    try:
        status = app(standalone_mode=False)
        typer.echo(nl=False)  # flushes, so that a closed pipe or a full disk shows here and not at exit
    except InputError as error:
        status = _refuse(str(error))
    except typer.TyperException as error:
        status = _refuse(in_words(error))
    except OSError as error:
        _silence(sys.stdout)
        status = 1 if error.errno == errno.EPIPE else _refuse(_failed(error))
    except typer.Abort:
        status = INTERRUPTED
    if status == INTERRUPTED:
        _say("interrupted; files written so far are whole")
    sys.exit(status if isinstance(status, int) else 0)


def _refuse(message: str) -> int:
    """Print one line on stderr; return the exit status of bad input."""
    if message:  # empty where no command was given: the help has been printed
        _say(printable(" ".join(message.split())))
    return 2


def _failed(error: OSError) -> str:
    """Return in words what failed: a file that the error names, else a stream that could not take more."""
    what = "stdout" if error.filename is None else error.filename
    return f"{what}: can't be read or written ({error.strerror or error})"


def _say(message: str) -> None:
    try:
        typer.echo(f"kvreclaim: {message}", err=True)
    except OSError:  # nobody can be told, but the exit status
        _silence(sys.stderr)


def _silence(stream: IO[str]) -> None:
    """Let what a stream still holds go nowhere: the flush at exit would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
