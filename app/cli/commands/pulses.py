"""What is asked about recorded pulses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

pulse = typer.Typer(help="What is noticed between sessions, in a few numbers a rank and step.")
app = typer.Typer()
app.add_typer(pulse, name="pulse")


@pulse.callback()
def _pulse() -> None:
    """Keep its commands below `paceline pulse`."""


@pulse.command()
def detect(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A Parquet file")
    ],
    *,
    meta: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            readable=True,
            help="Metadata of a session of the job, for the hosts of its ranks: YAML or JSON",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all notices as JSON")] = False,
) -> None:
    """Print what is noticed in a recorded pulse, without any server."""
    from app.cli.pulse.detect import detect_file

    detect_file(file, meta, as_json=json)
