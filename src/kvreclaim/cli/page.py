"""``kvreclaim page``: results folders as one self-contained page."""

from __future__ import annotations

from typing import Annotated

import typer


def page_command(
    folders: Annotated[
        list[str],
        typer.Argument(metavar="DIR...", help="Results folders, in any order; each gives its sections."),
    ],
    out: Annotated[str, typer.Option(metavar="FILE", help="The page to write.")] = "index.html",
) -> None:
    """Assemble the sections of results folders into one HTML file that works offline."""
    from kvreclaim.cli.extras import needs
    from kvreclaim.results import write_bytes

    with needs("report"):
        from kvreclaim.report import render_page

        write_bytes(out, render_page(folders).encode())
    typer.echo(f"wrote {out}: open it in a browser")
