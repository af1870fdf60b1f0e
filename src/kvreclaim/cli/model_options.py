"""What commands on a real model, and of what it needs, have in common: its name, and options that repeat."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Option(
        metavar="MODEL", help="A fetched model's name, a model directory, or an id on the Hugging Face Hub."
    ),
]


def repeated(name: str, metavar: str, help: str, default: str) -> typer.models.OptionInfo:  # noqa: A002  # typer's
    """Return an option that may be repeated.

    Parameters
    ----------
    name, metavar
        As it is given, and what it takes.
    help
        What it says: a phrase, or a phrase and sentences.
    default
        What holds where it is not given.
    """
    phrase, *others = help.split(". ", 1)
    text = ". ".join([f"{phrase.removesuffix('.')}; may be repeated", *others]) + ("" if others else ".")
    found: typer.models.OptionInfo = typer.Option(name, metavar=metavar, help=text, show_default=default)
    return found
