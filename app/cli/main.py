"""The `paceline` command.

Standard output carries the result only; progress and messages go to standard error. Exit codes:
0 done, 1 the work failed, 2 wrong use. Commands import what they need when they run, so that
`paceline analyze` starts fast and needs no server package.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.errors import PacelineError

if TYPE_CHECKING:
    from app.settings import Settings

EXIT_FAILED = 1

app = typer.Typer(
    name="paceline",
    help="Online straggler monitor for LLM training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


alerts = typer.Typer(
    help="Try a channel, or encrypt the secrets of all anew; the server does it.",
    no_args_is_help=True,
)
app.add_typer(alerts, name="alerts")


class Method(StrEnum):
    """How `paceline plan` finds a template."""

    OPTIMAL = "optimal"
    DITTO = "ditto"
    GREEDY = "greedy"
    EXHAUSTIVE = "exhaustive"


class Objective(StrEnum):
    """What `paceline plan` makes small."""

    T_STD = "t_std"
    T_OOBLECK = "t_oobleck"
    SIMULATED = "simulated"


TraceArgument = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="Parquet or NDJSON")
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

HostOption = Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1]")]
PortOption = Annotated[int | None, typer.Option(min=0, max=65535, help="Port [8765]; 0: any free")]
DataDirOption = Annotated[
    Path | None, typer.Option(file_okay=False, help="Where the embedded database lives")
]
ServerOption = Annotated[str, typer.Option(envvar="PACELINE_SERVER", help="Address of the server")]
LOCAL_SERVER: Final = "http://127.0.0.1:8765"

FixOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SELECTION", help="What if these were ideal, and all else as recorded (repeatable)"
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
        metavar="SELECTION*FACTOR", help="What if these took so many times as long: op=gc*0.5"
    ),
]


@app.command()
def analyze(
    trace: TraceArgument,
    meta: MetaOption = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON")] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Also write the slowest step for Perfetto (.json.gz)"),
    ] = None,
    fix: FixOption = None,
    keep: KeepOption = None,
    scale: ScaleOption = None,
) -> None:
    """Analyze a trace on this machine, without any server.

    With --fix, --keep or --scale, answer that question instead. A selection is one or more of
    op=, step=, stage=, dp= and worker=DP:STAGE, each at most once, separated by commas; several
    values of one by |.
    """
    if fix or keep or scale:
        if timeline is not None:
            raise typer.BadParameter("--timeline writes a step of the report, not of a question")
        from app.cli.what_if import answer_file

        answer_file(trace, meta, fix or [], keep or [], scale or [], as_json=json)
        return
    from app.cli.analyze import analyze_file

    analyze_file(trace, meta, as_json=json, timeline=timeline)


@app.command()
def serve(
    *,
    host: HostOption = None,
    port: PortOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Serve the API and the dashboard; with the embedded database unless one is configured."""
    from app.run.supervisor import serve as run

    run(_settings(host, port, data_dir))


@app.command()
def demo(
    *,
    host: HostOption = None,
    port: PortOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Serve, and send synthetic sessions with different stragglers to look at."""
    from app.cli.demo import send_demo_sessions
    from app.run.supervisor import serve as run

    run(_settings(host, port, data_dir), after_start=send_demo_sessions)


@app.command()
def worker() -> None:
    """Run the workers of a production installation."""
    from app.run.supervisor import run_workers
    from app.settings import Settings

    run_workers(Settings())


@app.command()
def migrate() -> None:
    """Bring the schema of the configured database up to date."""
    from app.db.migrate import upgrade
    from app.errors import StartupError
    from app.settings import Settings

    url = Settings().database_url
    if url is None:
        raise StartupError(
            "PACELINE_DATABASE_URL is not set; the embedded database is migrated when it starts"
        )
    upgrade(url)


@app.command()
def doctor() -> None:
    """Say what is wrong with this installation."""
    from app.cli.doctor import examine
    from app.settings import Settings

    if not examine(Settings()):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def upload(
    trace: TraceArgument,
    meta: MetaOption = None,
    *,
    server: ServerOption = LOCAL_SERVER,
    job: Annotated[
        str | None, typer.Option(help="Name of the job; else the metadata's trial_name")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the report")] = False,
) -> None:
    """Send a trace to a server."""
    from app.cli.upload import upload as send

    send(trace, meta, server=server, job=job, wait=wait)


@app.command()
def synth(
    scenario: Annotated[
        str | None, typer.Argument(help="Name of the scenario; `list` names them all")
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Directory to write to", file_okay=False)] = Path(),
    seed: Annotated[int, typer.Option(min=0)] = 0,
    fleet: Annotated[
        int | None, typer.Option(min=1, help="Write so many jobs of a fleet instead")
    ] = None,
    trace_format: Annotated[
        str, typer.Option("--format", help="parquet, published, ndjson or ndjson-zstd")
    ] = "parquet",
) -> None:
    """Write synthetic traces, their metadata and their ground truth."""
    from app.analysis.synthesis.scenarios import ALL_SCENARIOS
    from app.analysis.trace.formats.registry import WRITERS
    from app.cli.synth import write_fleet, write_scenario

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


@app.command()
def plan(
    spec: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="YAML or JSON")
    ],
    *,
    method: Annotated[Method, typer.Option(help="How the template is found")] = Method.OPTIMAL,
    objective: Annotated[Objective, typer.Option(help="What is made small")] = Objective.T_STD,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds; then the best so far with its proven gap"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the whole plan as JSON")] = False,
) -> None:
    """Recommend a pipeline template for a cluster, without any server."""
    from app.cli.plan import plan_file

    plan_file(spec, method.value, objective.value, time_limit, as_json=json)


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


def _settings(host: str | None, port: int | None, data_dir: Path | None) -> Settings:
    """Return the settings of the environment, overridden by what the command line says."""
    from app.settings import Settings

    given = {"host": host, "port": port, "data_dir": data_dir}
    return Settings().model_copy(
        update={name: value for name, value in given.items() if value is not None}
    )


def main() -> None:
    """Run the command; domain errors become a message and an exit code."""
    try:
        app()
    except PacelineError as error:
        sys.stderr.write(f"paceline: {error.message} [{error.stable_code}]\n")
        for fault in error.faults:
            place = [
                f"{name} {value}"
                for name, value in (
                    ("line", fault.line),
                    ("row", fault.row),
                    ("column", fault.column),
                )
                if value is not None
            ]
            where = f" ({', '.join(place)})" if place else ""
            sys.stderr.write(f"  {fault.message}{where} [{fault.code}]\n")
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
