"""`paceline mcp`: tools for assistants."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.commands.options import LOCAL_SERVER, ServerOption

app = typer.Typer()


@app.command()
def mcp(
    *,
    server: ServerOption = LOCAL_SERVER,
    allow_acknowledge: Annotated[
        bool, typer.Option(help="Also offer the tool that acknowledges incidents")
    ] = False,
) -> None:
    """Serve tools for an assistant by the Model Context Protocol, over standard input and output.

    They ask the server with the token of PACELINE_TOKEN.
    """
    from app.cli.mcp import serve_tools

    serve_tools(server, may_acknowledge=allow_acknowledge)
