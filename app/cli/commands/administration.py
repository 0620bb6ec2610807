"""Commands that administer an installation: access, channels, retention, jobs, backups, blobs."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from app.cli.commands.options import LOCAL_SERVER, OutOption, ServerOption
from app.platform.identity import Right, Role

app = typer.Typer()
tokens = typer.Typer(help="Tokens that give programs access.", no_args_is_help=True)
app.add_typer(tokens, name="token")
users = typer.Typer(help="People who sign in.", no_args_is_help=True)
app.add_typer(users, name="user")
projects = typer.Typer(help="Projects, which are separate.", no_args_is_help=True)
app.add_typer(projects, name="project")

ProjectOption = Annotated[
    str | None, typer.Option(help="The one project that it is for [all projects]")
]


@tokens.command("create")
def create_token(
    name: Annotated[str, typer.Argument(help="Name of the user; unique")],
    *,
    scope: Annotated[list[Right], typer.Option(help="What it allows (repeatable)")],
    project: ProjectOption = None,
    job: Annotated[
        list[str] | None,
        typer.Option(help="Job that it may send for; * and ? match (repeatable) [all jobs]"),
    ] = None,
    expires_days: Annotated[
        int, typer.Option(min=0, max=3650, help="How long it is valid; 0: for ever")
    ] = 90,
) -> None:
    """Create a token and print its secret, which is shown only once."""
    from app.cli.access import make_token

    # Users of an installation without further projects need not name the default project.
    only = "default" if project is None and Right.INGEST in scope else project
    make_token(name, scope, only, job or (), expires_days or None)


@tokens.command("list")
def list_tokens() -> None:
    """List the tokens that are not revoked, without their secrets."""
    from app.cli.access import print_tokens

    print_tokens()


@tokens.command("revoke")
def revoke_token(name: Annotated[str, typer.Argument(help="Its name")]) -> None:
    """Revoke a token; from then on it opens nothing."""
    from app.cli.access import revoke

    revoke(name)


@tokens.command("renew")
def renew_token(
    name: Annotated[str, typer.Argument(help="Its name")],
    *,
    expires_days: Annotated[
        int, typer.Option(min=1, max=3650, help="How long it is valid, from now")
    ] = 90,
) -> None:
    """Let a token that is valid go on being so; its secret stays."""
    from app.cli.access import renew

    renew(name, expires_days)


@users.command("create")
def create_user(
    name: Annotated[str, typer.Argument(help="What they sign in with")],
    *,
    role: Annotated[Role, typer.Option(help="What they may do")] = Role.ADMINISTRATOR,
    project: ProjectOption = None,
) -> None:
    """Add a user with a password: asked for, or the first line of standard input."""
    from app.cli.access import make_user

    make_user(name, role, project)


PersonArgument = Annotated[str, typer.Argument(help="Name, or the id where several people have it")]


@users.command("list")
def list_users() -> None:
    """List the people who sign in, with their roles."""
    from app.cli.access import print_users

    print_users()


@users.command("password")
def set_user_password(name: PersonArgument) -> None:
    """Set a user's password: asked for, or the first line of standard input."""
    from app.cli.access import change_password

    change_password(name)


@users.command("role")
def set_user_role(
    name: PersonArgument,
    *,
    role: Annotated[
        Role | None, typer.Option(help="What they may do [none: the role is taken]")
    ] = None,
    project: ProjectOption = None,
) -> None:
    """Give a user a role in a project, or in all; without --role, take it."""
    from app.cli.access import change_role

    change_role(name, role, project)


@users.command("disable")
def disable_user(name: PersonArgument) -> None:
    """Disable a user, even if their provider still lets them in."""
    from app.cli.access import change_entry

    change_entry(name, disabled=True)


@users.command("enable")
def enable_user(name: PersonArgument) -> None:
    """Enable a disabled user."""
    from app.cli.access import change_entry

    change_entry(name, disabled=False)


@users.command("delete")
def delete_user(name: PersonArgument) -> None:
    """Delete a user; a user of a provider is added again by their next sign-in."""
    from app.cli.access import remove_user

    remove_user(name)


@projects.command("create")
def create_project(name: Annotated[str, typer.Argument(help="a-z, 0-9 and hyphens")]) -> None:
    """Make a project."""
    from app.cli.access import make_project

    make_project(name)


@projects.command("delete")
def delete_project(name: Annotated[str, typer.Argument(help="Its name")]) -> None:
    """Delete a project with all that it has."""
    from app.cli.access import remove_project

    remove_project(name)


@projects.command("export")
def export_project(
    name: Annotated[str, typer.Argument(help="Its name")],
    *,
    out: OutOption = None,
    server: ServerOption = LOCAL_SERVER,
) -> None:
    """Write all sessions of a project into a tar file; a server does it."""
    from app.cli.retention import export

    export(f"/p/{quote(name, safe='')}/api/v1/export", out or Path(f"{name}.tar"), server=server)


@projects.command("move-job")
def move_job(
    job: Annotated[str, typer.Argument(help="Name of the job")],
    *,
    to: Annotated[str, typer.Option(help="Project that it goes to")],
    source: Annotated[str, typer.Option("--from", help="Project that it leaves")] = "default",
) -> None:
    """Move a job, with its sessions, reports and incidents, to another project."""
    from app.cli.access import move

    move(job, source, to)


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
    from app.cli.access import send_test

    send_test(channel, server=server)


@alerts.command()
def reseal(*, server: ServerOption = LOCAL_SERVER) -> None:
    """Encrypt the secrets of all channels with the newest key."""
    from app.cli.access import reseal as run

    run(server=server)


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
    from app.cli.retention import analyze_many, analyze_named

    if ids:
        if state or job or before:
            raise typer.BadParameter("name sessions, or say which by --state, --job and --before")
        analyze_named(ids, server=server)
        return
    analyze_many(state or ["failed"], job, before, server=server)


@sessions.command("pin")
def pin(ids: SessionIds, *, server: ServerOption = LOCAL_SERVER) -> None:
    """Keep sessions whatever the project's retention says."""
    from app.cli.retention import set_pins

    set_pins(ids, pinned=True, server=server)


@sessions.command("unpin")
def unpin(ids: SessionIds, *, server: ServerOption = LOCAL_SERVER) -> None:
    """Let sessions go with the others of their age."""
    from app.cli.retention import set_pins

    set_pins(ids, pinned=False, server=server)


@sessions.command("delete")
def delete_sessions(
    ids: SessionIds, *, yes: YesOption = False, server: ServerOption = LOCAL_SERVER
) -> None:
    """Delete sessions with their traces and reports."""
    from app.cli.retention import delete

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
    from app.cli.retention import export

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
    from app.cli.retention import export

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
    from app.cli.retention import change_job as change

    change(job, {"name": name}, server=server)


@jobs.command("finish")
def finish_job(job: JobArgument, *, server: ServerOption = LOCAL_SERVER) -> None:
    """Say that a job has ended, as in a launcher's epilog: its silence is no incident."""
    from app.cli.retention import finish

    finish(job, server=server)


@jobs.command("archive")
def archive_job(job: JobArgument, *, server: ServerOption = LOCAL_SERVER) -> None:
    """Leave a job out of the fleet until it sends again."""
    from app.cli.retention import change_job as change

    change(job, {"archived": True}, server=server)


@jobs.command("unarchive")
def unarchive_job(job: JobArgument, *, server: ServerOption = LOCAL_SERVER) -> None:
    """Put a job back into the fleet."""
    from app.cli.retention import change_job as change

    change(job, {"archived": False}, server=server)


@jobs.command("delete")
def delete_job(
    job: JobArgument, *, yes: YesOption = False, server: ServerOption = LOCAL_SERVER
) -> None:
    """Delete a job with its sessions, reports and incidents."""
    from app.cli.retention import delete_job as delete

    if not yes:
        typer.confirm(f"Delete {job} with all its sessions and incidents?", abort=True)
    delete(job, server=server)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="File to write")],
) -> None:
    """Write everything of the configured database into a file; the server may run meanwhile."""
    from app.cli.retention import make_backup

    make_backup(file)


@app.command()
def restore(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A backup")
    ],
) -> None:
    """Fill an empty database from a backup, and bring it to the schema of this version."""
    from app.cli.retention import restore_backup

    restore_backup(file)


rules = typer.Typer(help="What a project keeps, and for how long.", no_args_is_help=True)
app.add_typer(rules, name="retention")
blobs = typer.Typer(help="Blobs in the database and in an object store.", no_args_is_help=True)
app.add_typer(blobs, name="blobs")


class Target(StrEnum):
    """Where blobs are moved to."""

    STORE = "store"
    DATABASE = "database"


@rules.command("show")
def show_retention(*, server: ServerOption = LOCAL_SERVER) -> None:
    """Print what there is of each kind, and how much of it is kept."""
    from app.cli.retention import show

    show(server=server)


@rules.command("set")
def set_retention(
    kind: Annotated[str, typer.Argument(help="traces, heatmaps, reports, task_runs…: see `show`")],
    *,
    days: Annotated[
        str | None, typer.Option(help="Delete what is older: a number, or `all` [unchanged]")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--bytes", help="Delete the oldest beyond this size: a number, or `all` [unchanged]"
        ),
    ] = None,
    server: ServerOption = LOCAL_SERVER,
) -> None:
    """Change how much of a kind is kept; the sweeper follows within minutes."""
    from app.cli.retention import change

    if days is None and size is None:
        raise typer.BadParameter("say --days, --bytes or both")
    change(kind, days, size, server=server)


@rules.command("run")
def run_retention() -> None:
    """Take away what is over the rules of all projects now, as the sweeper does by and by."""
    from app.cli.retention import run

    run()


@blobs.command("move")
def move_blobs(
    *,
    to: Annotated[Target, typer.Option(help="Where to")] = Target.STORE,
) -> None:
    """Move what is large into the object store, or all of it back; the server may run meanwhile."""
    from app.cli.retention import move

    move(to_store=to is Target.STORE)


@blobs.command("check")
def check_blobs() -> None:
    """Say how many blobs the object store holds, and whether it has lost any."""
    from app.cli.retention import check

    if not check():
        raise typer.Exit(1)
