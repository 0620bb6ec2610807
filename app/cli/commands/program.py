"""All commands as one program."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from app.cli.commands import administration as access
from app.cli.commands import administration as alerts
from app.cli.commands import administration as retention
from app.cli.commands import administration as storing
from app.cli.commands import offline as hangs
from app.cli.commands import offline as planning
from app.cli.commands import offline as probes
from app.cli.commands import offline as pulses
from app.cli.commands import offline as sessions
from app.cli.commands import serving
from app.cli.commands import serving as assistants

app = typer.Typer(
    name="paceline",
    help="Online straggler monitor for LLM training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for commands in (
    *(sessions, retention, storing, serving, planning, hangs, pulses, alerts, access),
    *(assistants, probes),
):
    app.add_typer(commands.app)


def _say_version(wanted: bool) -> None:  # noqa: FBT001 - how typer calls it
    if wanted:
        typer.echo(version("paceline"))
        raise typer.Exit


@app.callback()
def _program(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Online straggler monitor for LLM training."""
