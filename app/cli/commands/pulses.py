"""What is asked about recorded pulses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from app.cli.commands.options import LOCAL_SERVER, OutOption, ServerOption

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


@pulse.command("export")
def export_pulse(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its name")],
    *,
    attempt: Annotated[int | None, typer.Option(help="Only this attempt [all]")] = None,
    out: OutOption = None,
    server: ServerOption = LOCAL_SERVER,
) -> None:
    """Write a job's pulse, step by step, into a Parquet file that `pulse detect` reads."""
    from app.cli.retention.sessions import export

    asked = "" if attempt is None else f"?attempt={attempt}"
    path = f"/api/v1/jobs/{quote(job, safe='')}/pulse/export{asked}"
    export(path, out or Path("pulse.parquet"), server=server)
