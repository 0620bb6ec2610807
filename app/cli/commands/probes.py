"""What is asked of the machine that the command runs on."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def probe(
    *,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Write it into this server's ledger [only printed]"),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=60.0, help="How long each measure runs")
    ] = 2.0,
    busy: Annotated[bool, typer.Option("--busy", help="Measure GPUs in use, too")] = False,
) -> None:
    """Measure the GPUs of this machine: matrix products, copies and an all-reduce among them.

    Run it while no job does. It needs PyTorch, and nothing else of a server: training images have
    it as `python -m paceline_client probe`.
    """
    from app.cli.probe import probe_machine

    probe_machine(server, seconds=seconds, busy=busy)
