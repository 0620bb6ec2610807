"""`paceline token`, `user` and `project`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from app.access.principals import Right, Role
from app.cli.commands.options import LOCAL_SERVER, OutOption, ServerOption

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
    expires_days: Annotated[
        int, typer.Option(min=0, max=3650, help="How long it is valid; 0: for ever")
    ] = 90,
) -> None:
    """Make a token and print it, the only time."""
    from app.cli.access import make_token

    # Who sends to an installation without projects need not name the one that there is.
    only = "default" if project is None and Right.INGEST in scope else project
    make_token(name, scope, only, expires_days or None)


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
    from app.cli.retention.sessions import export

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
