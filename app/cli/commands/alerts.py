"""`paceline alerts`."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.commands.options import LOCAL_SERVER, ServerOption

app = typer.Typer()

alerts = typer.Typer(
    help="Test a channel, or encrypt the secrets of all anew; the server does it.",
    no_args_is_help=True,
)
app.add_typer(alerts, name="alerts")


@alerts.command("test")
def try_channel(
    channel: Annotated[str, typer.Argument(help="Name or id of the channel")],
    *,
    server: ServerOption = LOCAL_SERVER,
) -> None:
    """Send a marked example to a channel and print what its receiver answers."""
    from app.cli.alerts import send_test

    send_test(channel, server=server)


@alerts.command()
def reseal(*, server: ServerOption = LOCAL_SERVER) -> None:
    """Encrypt the secrets of all channels with the newest key."""
    from app.cli.alerts import reseal as run

    run(server=server)
