"""`paceline retention`, done by a server, and `blobs`, on the database that the settings name."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from app.cli.commands.options import LOCAL_SERVER, ServerOption

app = typer.Typer()
rules = typer.Typer(help="What a project keeps, and for how long.", no_args_is_help=True)
app.add_typer(rules, name="retention")
blobs = typer.Typer(help="Blobs in the database and in an object store.", no_args_is_help=True)
app.add_typer(blobs, name="blobs")


class Target(StrEnum):
    """Where blobs are moved to."""

    STORE = "store"
    DATABASE = "database"


@rules.command("show")
def show_retention(*, server: ServerOption = LOCAL_SERVER) -> None:
    """Print what there is of each kind, and how much of it is kept."""
    from app.cli.retention.rules import show

    show(server=server)


@rules.command("set")
def set_retention(
    kind: Annotated[str, typer.Argument(help="traces, heatmaps, reports, task_runs…: see `show`")],
    *,
    days: Annotated[
        str | None, typer.Option(help="Delete what is older: a number, or `all` [unchanged]")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--bytes", help="Delete the oldest beyond this size: a number, or `all` [unchanged]"
        ),
    ] = None,
    server: ServerOption = LOCAL_SERVER,
) -> None:
    """Change how much of a kind is kept; the sweeper follows within minutes."""
    from app.cli.retention.rules import change

    if days is None and size is None:
        raise typer.BadParameter("say --days, --bytes or both")
    change(kind, days, size, server=server)


@rules.command("run")
def run_retention() -> None:
    """Take away what is over the rules of all projects now, as the sweeper does by and by."""
    from app.cli.retention.rules import run

    run()


@blobs.command("move")
def move_blobs(
    *,
    to: Annotated[Target, typer.Option(help="Where to")] = Target.STORE,
) -> None:
    """Move what is large into the object store, or all of it back; the server may run meanwhile."""
    from app.cli.retention.blobs import move

    move(to_store=to is Target.STORE)


@blobs.command("check")
def check_blobs() -> None:
    """Say how many blobs the object store holds, and whether it has lost any."""
    from app.cli.retention.blobs import check

    if not check():
        raise typer.Exit(1)
