"""Commands that need no server: traces, plans, hang dumps, probes and pulses."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from app.analysis.replay.adaptations.kind import Name as AdaptationName
from app.cli.commands.options import (
    LOCAL_SERVER,
    LabelsOption,
    MetaOption,
    OutOption,
    ServerOption,
    TraceOrFolder,
)

app = typer.Typer()


class Method(StrEnum):
    """How `paceline plan` finds a template."""

    OPTIMAL = "optimal"
    DITTO = "ditto"
    GREEDY = "greedy"
    EXHAUSTIVE = "exhaustive"


class Objective(StrEnum):
    """What `paceline plan` makes small."""

    SIMULATED = "simulated"
    T_STD = "t_std"
    T_OOBLECK = "t_oobleck"


@app.command()
def plan(
    spec: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, readable=True, help="YAML or JSON"),
    ] = None,
    *,
    session: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            readable=True,
            help="In place of a specification: a trace, whose whole job is planned as measured",
        ),
    ] = None,
    meta: MetaOption = None,
    method: Annotated[Method, typer.Option(help="How the template is found")] = Method.OPTIMAL,
    objective: Annotated[
        Objective, typer.Option(help="What is made small: the executed time, or an estimate of it")
    ] = Objective.SIMULATED,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds; then the best so far with its proven gap"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the whole plan as JSON")] = False,
) -> None:
    """Recommend a pipeline template for a cluster, without any server.

    With --session, plan the whole job of a trace whose metadata say its model, batch and nodes, and
    hold the plan against the job as it runs.
    """
    if (spec is None) == (session is None):
        raise typer.BadParameter("give a specification or --session, one of them")
    if session is not None:
        if (method, objective) != (Method.OPTIMAL, Objective.SIMULATED):
            raise typer.BadParameter("a whole job is planned by optimal, simulated")
        from app.cli.plans import plan_trace

        plan_trace(session, meta, time_limit, as_json=json)
        return
    assert spec is not None  # noqa: S101 - see above
    from app.cli.plans import plan_file

    plan_file(spec, method.value, objective.value, time_limit, as_json=json)


@app.command()
def mitigate(
    spec: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="YAML or JSON")
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the whole advice as JSON")] = False,
) -> None:
    """Plan the work of a tensor-parallel group with stragglers, without any server."""
    from app.cli.mitigate import mitigate_file

    mitigate_file(spec, as_json=json)


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
        from app.cli.what_if import answer_file, question_of

        question = question_of(
            fix=fix or (),
            replace=replace or (),
            keep=keep or (),
            scale=scale or (),
            without=switched_off,
        )
        answer_file(trace, meta, question, as_json=json, labels=labels)
        return
    from app.cli.analyze import analyze_file

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
    from app.cli.synthetic import write_fleet, write_scenario

    if scenario == "list":
        for listed in ALL_SCENARIOS.values():
            typer.echo(f"{listed.name:<24}{listed.summary}")
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


@app.command()
def hang(
    paths: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            readable=True,
            help="Dumps of flight recorders, of py-spy and of ncclras, or a folder",
        ),
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the whole verdict as JSON")] = False,
    send: Annotated[
        str | None, typer.Option(metavar="JOB", help="Send them to the server, as of this job")
    ] = None,
    server: ServerOption = LOCAL_SERVER,
) -> None:
    """Name the ranks that a job which stands still is waiting for; without any server."""
    from app.cli.hang import judge_files, send_files

    if send is not None:
        send_files(paths, send, server)
        return
    judge_files(paths, as_json=json)


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
    from app.cli.hang import probe_machine

    probe_machine(server, seconds=seconds, busy=busy)


pulse = typer.Typer(help="What is noticed between sessions, in a few numbers a rank and step.")
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
    from app.cli.hang import detect_file

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
    from app.cli.retention import export

    query = "" if attempt is None else f"?attempt={attempt}"
    path = f"/api/v1/jobs/{quote(job, safe='')}/pulse/export{query}"
    export(path, out or Path("pulse.parquet"), server=server)
