"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

TraceOrFolder = Annotated[
    Path,
    typer.Argument(
        exists=True,
        readable=True,
        help="Any format that is read here; or a folder with the files of a job's ranks, or an "
        "archive of one",
    ),
]
MetaOption = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        readable=True,
        help="Sizes of the job, YAML or JSON; may be in the header of an NDJSON trace",
    ),
]

LabelsOption = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        readable=True,
        help="What ranges of the job's own are: a mapping of patterns to operation types, YAML",
    ),
]
OutOption = Annotated[Path | None, typer.Option(dir_okay=False, help="File to write [its name]")]

ServerOption = Annotated[str, typer.Option(envvar="PACELINE_SERVER", help="Address of the server")]
LOCAL_SERVER: Final = "http://127.0.0.1:8765"
