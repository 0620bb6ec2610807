"""`paceline session` and `job`, done by a server; `backup` and `restore` of its database."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from app.cli.commands.options import LOCAL_SERVER, OutOption, ServerOption

app = typer.Typer()
sessions = typer.Typer(help="Analyze sessions again, pin or delete them.", no_args_is_help=True)
app.add_typer(sessions, name="session")
jobs = typer.Typer(help="Rename, archive or delete jobs.", no_args_is_help=True)
app.add_typer(jobs, name="job")

SessionIds = Annotated[list[str], typer.Argument(metavar="SESSION...", help="Their ids")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Its name")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask")]


@sessions.command("analyze")
def analyze_again(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[SESSION]...", help="Their ids; else by state")
    ] = None,
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(help="failed, discarded, no_verdict or analyzed (repeatable) [failed]"),
    ] = None,
    job: Annotated[str | None, typer.Option(help="Only sessions of this job")] = None,
    before: Annotated[
        datetime | None,
        typer.Option(help="Only those whose state is older, in UTC: the time of an update [now]"),
    ] = None,
    server: ServerOption = LOCAL_SERVER,
) -> None:
    """Analyze sessions again: named ones, or all that failed, or all after an update."""
    from app.cli.retention.sessions import analyze_many, analyze_named

    if ids:
        if state or job or before:
            raise typer.BadParameter("name sessions, or say which by --state, --job and --before")
        analyze_named(ids, server=server)
        return
    analyze_many(state or ["failed"], job, before, server=server)


@sessions.command("pin")
def pin(ids: SessionIds, *, server: ServerOption = LOCAL_SERVER) -> None:
    """Keep sessions whatever the project's retention says."""
    from app.cli.retention.sessions import set_pins

    set_pins(ids, pinned=True, server=server)


@sessions.command("unpin")
def unpin(ids: SessionIds, *, server: ServerOption = LOCAL_SERVER) -> None:
    """Let sessions go with the others of their age."""
    from app.cli.retention.sessions import set_pins

    set_pins(ids, pinned=False, server=server)


@sessions.command("delete")
def delete_sessions(
    ids: SessionIds, *, yes: YesOption = False, server: ServerOption = LOCAL_SERVER
) -> None:
    """Delete sessions with their traces and reports."""
    from app.cli.retention.sessions import delete

    if not yes:
        typer.confirm(f"Delete {len(ids)} session{'' if len(ids) == 1 else 's'}?", abort=True)
    delete(ids, server=server)


@sessions.command("export")
def export_session(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Its id")],
    *,
    out: OutOption = None,
    server: ServerOption = LOCAL_SERVER,
) -> None:
    """Write a session into a tar file: metadata, operations, report, heatmaps."""
    from app.cli.retention.sessions import export

    export(
        f"/api/v1/sessions/{session}/export",
        out or Path(f"session-{session}.tar"),
        server=server,
    )


@jobs.command("export")
def export_job(
    job: JobArgument, *, out: OutOption = None, server: ServerOption = LOCAL_SERVER
) -> None:
    """Write all sessions of a job into a tar file."""
    from app.cli.retention.sessions import export

    path = f"/api/v1/jobs/{quote(job, safe='')}/export"
    export(path, out or Path("job.tar"), server=server)


@jobs.command("rename")
def rename_job(
    job: JobArgument,
    name: Annotated[str, typer.Argument(help="Its new name")],
    *,
    server: ServerOption = LOCAL_SERVER,
) -> None:
    """Rename a job; what is sent under the old name is another job from now on."""
    from app.cli.retention.jobs import change

    change(job, {"name": name}, server=server)


@jobs.command("finish")
def finish_job(job: JobArgument, *, server: ServerOption = LOCAL_SERVER) -> None:
    """Say that a job has ended, as in a launcher's epilog: its silence is no incident."""
    from app.cli.retention.jobs import finish

    finish(job, server=server)


@jobs.command("archive")
def archive_job(job: JobArgument, *, server: ServerOption = LOCAL_SERVER) -> None:
    """Leave a job out of the fleet until it sends again."""
    from app.cli.retention.jobs import change

    change(job, {"archived": True}, server=server)


@jobs.command("unarchive")
def unarchive_job(job: JobArgument, *, server: ServerOption = LOCAL_SERVER) -> None:
    """Put a job back into the fleet."""
    from app.cli.retention.jobs import change

    change(job, {"archived": False}, server=server)


@jobs.command("delete")
def delete_job(
    job: JobArgument, *, yes: YesOption = False, server: ServerOption = LOCAL_SERVER
) -> None:
    """Delete a job with its sessions, reports and incidents."""
    from app.cli.retention.jobs import delete

    if not yes:
        typer.confirm(f"Delete {job} with all its sessions and incidents?", abort=True)
    delete(job, server=server)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="File to write")],
) -> None:
    """Write everything of the configured database into a file; the server may run meanwhile."""
    from app.cli.retention.backup import make_backup

    make_backup(file)


@app.command()
def restore(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A backup")
    ],
) -> None:
    """Fill an empty database from a backup, and bring it to the schema of this version."""
    from app.cli.retention.backup import restore_backup

    restore_backup(file)
