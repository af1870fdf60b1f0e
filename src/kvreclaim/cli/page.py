"""``kvreclaim page``: results folders as one self-contained page."""

from __future__ import annotations

from typing import Annotated

import typer

from kvreclaim.cli.output import wrote


def page_command(
    folders: Annotated[
        list[str],
        typer.Argument(metavar="DIR...", help="Results folders, in any order; each gives its sections."),
    ],
    page: Annotated[str, typer.Option("--out", metavar="FILE", help="The page to write.")] = "index.html",
) -> None:
    """Assemble the sections of results folders into one HTML file that works offline."""
    from kvreclaim.cli.extras import needs
    from kvreclaim.results import check_writable, write_bytes

    check_writable(page)
    with needs("report"):
        from kvreclaim.report import render_page

        write_bytes(page, render_page(folders).encode())
    typer.echo(wrote(page, "open it in a browser"))
