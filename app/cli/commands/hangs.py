"""What is asked about a job that stands still, without any server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.commands.options import LOCAL_SERVER, ServerOption

app = typer.Typer()


@app.command()
def hang(
    paths: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            readable=True,
            help="Dumps of flight recorders, of py-spy and of ncclras, or a folder",
        ),
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the whole verdict as JSON")] = False,
    send: Annotated[
        str | None, typer.Option(metavar="JOB", help="Send them to the server, as of this job")
    ] = None,
    server: ServerOption = LOCAL_SERVER,
) -> None:
    """Name the ranks that a job which stands still is waiting for; without any server."""
    from app.cli.hang import judge_files, send_files

    if send is not None:
        send_files(paths, send, server)
        return
    judge_files(paths, as_json=json)
