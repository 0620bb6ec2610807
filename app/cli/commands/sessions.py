"""Commands about traces and sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.analysis.replay.adaptations.evidence import Name as AdaptationName
from app.cli.commands.options import (
    LOCAL_SERVER,
    LabelsOption,
    MetaOption,
    ServerOption,
    TraceOrFolder,
)

app = typer.Typer()

FixOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SELECTION", help="What if these were ideal, and all else as recorded (repeatable)"
    ),
]
ReplaceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SELECTION",
        help="What if these took the median of their stage's other DP ranks, as in the best fix",
    ),
]
KeepOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SELECTION", help="What if only these were as recorded, and all else ideal"
    ),
]
ScaleOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SELECTION*FACTOR", help="Replay with these durations multiplied: op=gc*0.5"
    ),
]
WithoutOption = Annotated[
    list[AdaptationName] | None,
    typer.Option(
        metavar="ADAPTATION",
        help=f"Replay without this adaptation (repeatable): {', '.join(AdaptationName)}",
    ),
]


@app.command()
def analyze(
    trace: TraceOrFolder,
    meta: MetaOption = None,
    labels: LabelsOption = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON")] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Also write the slowest step for Perfetto (.json.gz)"),
    ] = None,
    fix: FixOption = None,
    replace: ReplaceOption = None,
    keep: KeepOption = None,
    scale: ScaleOption = None,
    without: WithoutOption = None,
) -> None:
    """Analyze a trace on this machine, without any server.

    With --fix, --replace, --keep or --scale, answer that question instead. A selection is one or
    more of op=, step=, stage=, dp= and worker=DP:STAGE, each at most once, separated by commas;
    several values of one by |. With --without, report and question are of a replay without
    adaptations that the trace would call for.
    """
    switched_off = tuple(dict.fromkeys(without or ()))
    if fix or replace or keep or scale:
        if timeline is not None:
            raise typer.BadParameter("--timeline writes a step of the report, not of a question")
        from app.cli.sessions.what_if import answer_file, question_of

        question = question_of(
            fix=fix or (),
            replace=replace or (),
            keep=keep or (),
            scale=scale or (),
            without=switched_off,
        )
        answer_file(trace, meta, question, as_json=json, labels=labels)
        return
    from app.cli.sessions.analyze import analyze_file

    analyze_file(trace, meta, as_json=json, timeline=timeline, without=switched_off, labels=labels)


@app.command()
def connect(
    *,
    framework: Annotated[
        str | None,
        typer.Option(
            help="Such as ddp, megatron or transformers; else it asks, and names them all"
        ),
    ] = None,
    launcher: Annotated[
        str | None, typer.Option(help="torchrun, slurm or kubernetes; else it asks")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Name of the job; else it asks")] = None,
    server: ServerOption = LOCAL_SERVER,
    send: Annotated[
        bool, typer.Option(help="Check the server, with a tiny session of a job of its own")
    ] = True,
) -> None:
    """Print the lines that connect a training job, and try the server that they send to."""
    from app.cli.connect import connect as run

    run(server, job, framework, launcher, send=send)


@app.command()
def convert(
    kind: Annotated[str, typer.Argument(help="kineto, ndtimeline, megascan, nsys, otel or xprof")],
    files: Annotated[
        list[Path],
        typer.Argument(exists=True, readable=True, help="A file a rank, folders, archives"),
    ],
    *,
    out: Annotated[Path, typer.Option(help="Directory to write to", file_okay=False)] = Path(),
    meta: MetaOption = None,
    labels: LabelsOption = None,
    trace_format: Annotated[
        str, typer.Option("--format", help="parquet, ndjson, ndjson-zstd or arrow")
    ] = "parquet",
) -> None:
    """Make one trace of what another program recorded, and say what could not be used."""
    from app.analysis.trace.formats.registry import FOREIGN, WRITERS
    from app.cli.convert import convert as run

    if kind not in FOREIGN:
        raise typer.BadParameter(f"the kind is one of {', '.join(FOREIGN)}")
    writer = WRITERS.get(trace_format)
    if writer is None:
        raise typer.BadParameter(f"--format is one of {', '.join(WRITERS)}")
    run(kind, files, out, meta, writer, labels=labels)


@app.command()
def upload(
    trace: TraceOrFolder,
    meta: MetaOption = None,
    labels: LabelsOption = None,
    *,
    server: ServerOption = LOCAL_SERVER,
    job: Annotated[
        str | None, typer.Option(help="Name of the job; else the metadata's trial_name")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the report")] = False,
) -> None:
    """Send a trace to a server."""
    from app.cli.upload import upload as send

    send(trace, meta, server=server, job=job, wait=wait, labels=labels)


@app.command()
def synth(
    scenario: Annotated[
        str | None, typer.Argument(help="Name of the scenario; `list` names them all")
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Directory to write to", file_okay=False)] = Path(),
    seed: Annotated[int, typer.Option(min=0)] = 0,
    fleet: Annotated[
        int | None, typer.Option(min=1, help="Write a fleet of this number of jobs instead")
    ] = None,
    trace_format: Annotated[
        str, typer.Option("--format", help="parquet, published, arrow, ndjson or ndjson-zstd")
    ] = "parquet",
) -> None:
    """Write synthetic traces, their metadata and their ground truth."""
    from app.analysis.synthesis.scenarios import ALL_SCENARIOS
    from app.analysis.trace.formats.registry import WRITERS
    from app.cli.synthetic.files import write_fleet, write_scenario

    if scenario == "list":
        for known in ALL_SCENARIOS.values():
            typer.echo(f"{known.name:<24}{known.summary}")
        return
    if (scenario is None) == (fleet is None):
        raise typer.BadParameter("name either a scenario or the size of a --fleet")
    writer = WRITERS.get(trace_format)
    if writer is None:
        raise typer.BadParameter(f"--format is one of {', '.join(WRITERS)}")
    if scenario is not None:
        written = iter([write_scenario(scenario, out, seed=seed, writer=writer)])
    else:
        written = write_fleet(fleet or 1, out, seed=seed, writer=writer)
    for files in written:
        for path in (files.trace, files.meta, files.truth):
            typer.echo(str(path))
