"""All commands as one program."""

from __future__ import annotations

import typer

from app.cli.commands import (
    access,
    alerts,
    assistants,
    hangs,
    planning,
    probes,
    pulses,
    retention,
    serving,
    sessions,
    storing,
)

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
